"""Two hosts on one machine: network namespaces with a wire between them, and torchrun on each.

Needs Linux, root, `ip` and `tc`; what is missing is said.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
HOSTS = ("ppc-a", "ppc-b")
TBF = ("tbf", "burst", "64kb", "latency", "2s", "rate")
ADDRESS = ("10.213.7.1", "10.213.7.2")
LONGEST = 300  # seconds for a training, on a busy machine


class NoHostsError(Exception):
    """None can be made here; the message says why."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def wired() -> Iterator[None]:
    """Two hosts, each with an end of one wire, `ppc0`. Raises NoHostsError where none can be made."""
    if why := missing():
        raise NoHostsError(why)
    names = [f"{host}-{os.getpid()}" for host in HOSTS]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "ppc0", "netns", names[0], "type", "veth", "peer", "name", "ppc0", "netns", names[1])
        except subprocess.CalledProcessError as error:
            why = f"this system makes no network namespaces: {error.stderr.decode().strip()}"
            raise NoHostsError(why) from None
        for name, address in zip(names, ADDRESS, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "ppc0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "ppc0", "up")
        yield
    finally:
        for name in names:  # with the processes that are in it, if any are left
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20).stdout
            for pid in pids.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


def missing() -> str:
    """Why there can be no hosts here; "" if nothing is known to be missing."""
    if sys.platform != "linux":
        return "this is not Linux"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    lacking = [command for command in ("ip", "tc") if shutil.which(command) is None]
    return f"there is no command `{lacking[0]}`" if lacking else ""


def held_to(rate: str) -> None:
    """Both ends of the wire send no faster: "100mbit"."""
    for host in HOSTS:
        ip("netns", "exec", f"{host}-{os.getpid()}", "tc", "qdisc", "replace", "dev", "ppc0", "root", *TBF, rate)


def on_two_hosts(path: Path, *options: str) -> list[dict[str, Any]]:
    """A training by `ppcourse train` with one rank on each host: its steps, which it also writes into `path`."""
    port, running = str(free_port()), []
    for number, host in enumerate(HOSTS):
        there = ["ip", "netns", "exec", f"{host}-{os.getpid()}"]
        meet = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        meet += ["--master-addr", ADDRESS[0], "--master-port", port]
        command = [*there, *TORCHRUN, *meet, "-m", "ppcourse", "train", *options, "--json", str(path)]
        running.append(subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = [each.communicate(timeout=LONGEST) for each in running]
    assert [each.returncode for each in running] == [0, 0], said
    return told(path)


def environment() -> dict[str, str]:
    """With one thread a rank, which torchrun else warns of."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def told(path: Path) -> list[dict[str, Any]]:
    """The steps of a training, as `--json` has them."""
    return list(json.loads(path.read_text()))


def best(logs: list[dict[str, Any]]) -> float:
    """Seconds of the quickest step: a busy machine only adds."""
    return float(min(log["seconds"] for log in logs))
