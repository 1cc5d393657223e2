"""How the ranks that torchrun has started meet, on one host or several, and again after each restart.

After a restart torchrun's store still has what the ranks of the attempt before wrote into it, their addresses too, and
a rank that reads one of these calls somebody who is gone (pytorch issue 135712). torchrun's own count of restarts is no
help: it is each host's own. So rank 0 draws a new name for every attempt, under which all is stored, and gives it to
those who ask now: each asks with a word that was never used before.
"""

import os
import socket
import time
import uuid
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ppcourse.runtime.machine import gpus
from ppcourse.runtime.machine.system import FOREVER

LOOK_AGAIN = 0.02  # seconds between two looks at who asks
PATIENCE = 120.0  # seconds in which all ranks must have come; torchrun starts them at one time, but disks may be slow


def join() -> None:
    """Meet the other ranks. Messages take the interface that leads to rank 0, unless GLOO_SOCKET_IFNAME names one.

    Raises ConnectionError if they do not all come.
    """
    gpus.adopt(gpus.environment())
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(os.environ["MASTER_ADDR"])):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        store, rank, num_ranks = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE)))
    except dist.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
        raise ConnectionError(f"The ranks do not meet at {where}: {str(error).partition('. ')[0]}.") from None
    store.set_timeout(FOREVER)
    own = dist.PrefixStore(attempt(store, rank, num_ranks), store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=own, rank=rank, world_size=num_ranks, timeout=FOREVER)


def attempt(store: Any, rank: int, num_ranks: int) -> str:
    """The name of this attempt, the same on all its ranks; whatever the attempts before have left in the store.

    Raises ConnectionError on rank 0 for ranks that do not come, and on the others if rank 0 is gone.
    """
    if rank:
        word = uuid.uuid4().hex
        store.set(f"asks/{rank}", word)
        try:
            name = str(store.get(f"name for/{word}").decode())
        except dist.DistError:
            raise ConnectionError(f"Rank {rank} has met nobody: rank 0 is gone; its host says why.") from None
        store.set(f"{name}/{rank}", "came")
        return name
    name, until = f"attempt/{uuid.uuid4().hex}", time.monotonic() + PATIENCE
    while missing := [other for other in range(1, num_ranks) if not store.check([f"{name}/{other}"])]:
        if time.monotonic() > until:
            who = f"Rank {missing[0]} has" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))} have"
            raise ConnectionError(f"{who} not come in {PATIENCE:g} s; their hosts say why, if they were started.")
        for other in missing:
            if store.check([f"asks/{other}"]):  # now, or in an attempt before: who is gone does not mind an answer
                store.set(f"name for/{store.get(f'asks/{other}').decode()}", name)
        time.sleep(LOOK_AGAIN)
    return name


def interface_towards(host: str) -> str:
    """The name of the network interface by which this host reaches another one; "" if that cannot be told."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as asked:
            asked.connect(address)  # sends nothing, but chooses the way
            own = asked.getsockname()[0]
    except OSError:
        return ""
    return next((name for name, ends in psutil.net_if_addrs().items() if own in [e.address for e in ends]), "")
