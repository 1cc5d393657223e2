"""What is written on request: torch.profiler's trace with a range an action, and a snapshot of the allocator."""

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.schedules import build

Events: TypeAlias = Sequence[Mapping[str, Any]]


def trace(setting: Setting, allowance: Allowance) -> Finding:
    """A file a rank that can be read, with every action of the rank's row once, and no other rank's."""
    plan, path = build("1f1b", tasks.P, tasks.M), setting.place("trace.json")
    setting.run(plan, tasks.small_gpt(), profiler=path)
    files = [*events_in(path.parent)]
    wrong = [] if len(files) == tasks.P else [f"{tasks.P} ranks wrote {len(files)} traces."]
    table = [("rank", "events", "kernels", "actions")]
    everyone = {str(action) for row in plan.rows for action in row}
    for rank, (row, events) in enumerate(zip(plan.rows, files, strict=False)):
        ranges = Counter(str(event["name"]) for event in events if event.get("cat") == "user_annotation")
        found = Counter({name: count for name, count in ranges.items() if name in everyone})
        if found != Counter(map(str, row)):
            wrong.append(f"The ranges of rank {rank} are not the actions of its row.")
        seen = sum(event.get("cat") == "kernel" for event in events)
        if not (setting.dry or seen):
            wrong.append(f"The trace of rank {rank} shows no kernel.")
        table.append((str(rank), str(len(events)), str(seen), f"{found.total()} of {len(row)}"))
    return judged(wrong, "Every rank wrote a trace, in which each action of its row is a range.", table=table)


def snapshot(setting: Setting, allowance: Allowance) -> Finding:
    """A file a rank, as torch.cuda.memory._dump_snapshot writes them, with memory in it."""
    path = setting.place("snapshot.pickle")
    setting.run(build("1f1b", tasks.P, tasks.M), tasks.small_gpt(), snapshot=path)
    files = [each for each in sorted(path.parent.rglob("*")) if each.is_file()]
    wrong = [] if len(files) == tasks.P else [f"{tasks.P} ranks wrote {len(files)} snapshots."]
    table = [("rank", "segments", "events", "reserved, MB")]
    for rank, file in enumerate(files):
        found = pickle.loads(file.read_bytes())
        events = sum(map(len, found["device_traces"]))
        reserved = sum(segment["total_size"] for segment in found["segments"])
        if not (events and reserved):
            wrong.append(f"The snapshot of rank {rank} is empty.")
        table.append((str(rank), str(len(found["segments"])), str(events), f"{reserved / 1e6:.1f}"))
    return judged(wrong, "Every rank wrote a snapshot with its segments and their history.", table=table)


def events_in(folder: Path) -> Iterator[Events]:
    """The events of every trace in a folder, file by file in the order of their names."""
    for path in sorted(folder.rglob("*.json*")):
        data = path.read_bytes()
        events: Events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
        yield events
