"""What a rank adds to a checkpoint, and what it takes from one: all by the names of the whole model.

    weights/NAME          a weight, a buffer, or what else a layer's state_dict has
    optimizer/NAME/KEY    what the optimizer remembers of a weight, AdamW its exp_avg for instance

NAME begins with the layer's number; a tied weight goes by the first of its names. No key tells of ranks or stages, so
what four ranks wrote with two stages each, two ranks or one can load. Of what several ranks hold, one writes.

The files are those of torch.distributed.checkpoint, which is imported when the first checkpoint is written or read.
Random states are not in them: a layer's random numbers follow from seed, step, layer and microbatch (stage.py).
"""

import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.training import Trainer

PIECE = 2**22  # bytes read at once
State = dict[str, Any]


class Part(NamedTuple):
    """What a rank tells of its part: the class of its optimizer, and {file: (bytes, CRC-32)} of what it wrote."""

    optimizer: str | None
    files: dict[str, tuple[int, int]]


def save(folder: Path, rank: int, model: nn.Module, trainer: Trainer, first: Mapping[str, str]) -> Part:
    """Write this rank's part into `folder`; all ranks do so together. `first`: the first of a weight's names.

    Raises RuntimeError for an optimizer that a checkpoint cannot keep, and what writing raises.
    """
    from torch.distributed.checkpoint import state_dict_saver as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    if changed := trainer.changed():
        raise RuntimeError(
            f"the optimizer changes its {changed} from step to step, which a checkpoint does not keep; train without"
            " checkpoint_dir"
        )
    state = {f"weights/{first.get(name, name)}": value for name, value in model.state_dict().items()}
    for name, kept in trainer.kept().items():
        state |= {f"optimizer/{first.get(name, name)}/{key}": value for key, value in kept.items()}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    alone = not dist.is_initialized()
    with _plainly(rank):
        dcp.save(state, storage_writer=FileSystemWriter(folder), planner=planner, no_dist=alone)
    wrote = [*folder.glob(f"__{rank}_*"), *(folder.glob(".metadata") if rank == 0 else ())]
    return Part(None if trainer.made is None else type(trainer.made).__name__, {p.name: sizes(p) for p in wrote})


def restore(folder: Path, model: nn.Module, trainer: Trainer, first: Mapping[str, str]) -> None:
    """Take this rank's weights, and what its optimizer remembers of them, from a whole checkpoint."""
    names = {name: first.get(name, name) for name in model.state_dict()}
    read = _read(folder, {f"weights/{name}" for name in names.values()} | {f"optimizer/{n}" for n in names.values()})
    model.load_state_dict({name: read[f"weights/{known}"] for name, known in names.items()})
    kept: dict[str, State] = defaultdict(dict)
    for path, value in read.items():
        owner, _, key = path.rpartition("/")
        kept[owner][key] = value
    trainer.remember({name: kept.get(f"optimizer/{first.get(name, name)}", {}) for name in trainer.parameters})


def _read(folder: Path, wanted: set[str]) -> State:
    """What has one of these keys, or belongs to one."""
    from torch.distributed.checkpoint import state_dict_loader as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader, read = FileSystemReader(folder), dict[str, Any]()
    for key, kind in reader.read_metadata().state_dict_metadata.items():
        if key in wanted or key.rpartition("/")[0] in wanted:
            read[key] = None
            if isinstance(kind, TensorStorageMetadata):
                read[key] = torch.empty(kind.size, dtype=kind.properties.dtype)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _plainly(0):
        dcp.load(read, storage_reader=reader, planner=planner, no_dist=True)  # each rank reads for itself
    return read


def sizes(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32 of a file."""
    length = checksum = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            length, checksum = length + len(piece), zlib.crc32(piece, checksum)
    return length, checksum


@contextmanager
def _plainly(rank: int) -> Iterator[None]:
    """Without the warning that one process works alone, as it is meant to; and of what went wrong, on whichever rank,
    which all ranks are told, each raises what is its own."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            if rank in error.failures:
                raise error.failures[rank][0] from None
            raise LinkError(f"ranks {sorted(error.failures)} could not write") from None
