"""The life of a rank process: wait for an order, carry it out, answer.

Orders come through a pipe, as shipping.py makes them: a method of Worker and its arguments. Answers go back
packed (wire.py): the result, or a Failure, after which the driver stops every rank.
"""

import contextlib
import gc
import linecache
import os
import pickle
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from ppcourse.runtime.errors import Failure
from ppcourse.runtime.links.carriers import missing
from ppcourse.runtime.links.meeting import listen, meet
from ppcourse.runtime.links.shared import Peer
from ppcourse.runtime.machine import gpus, system
from ppcourse.runtime.processes.board import Board
from ppcourse.runtime.processes.shipping import Order
from ppcourse.runtime.processes.worker import Worker, barrier
from ppcourse.runtime.values import wire

UP = b"up"  # what a rank says first


def rank_main(rank: int, num_ranks: int, pipe: Connection, folder: str, environment: dict[str, str]) -> None:
    """The life of a rank process. `environment` is what it must be told of it (gpus.py)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the notebook is the driver's to handle
    system.die_with_parent()
    gpus.adopt(environment)
    system.sleep_precisely()
    system.speak_into(Path(folder) / f"rank-{rank}.log")
    torch.set_num_threads(1)
    gc.freeze()  # modules are here to stay: collections need not look through them
    board, sockets = Board(Path(folder) / "board", num_ranks), dict[int, socket.socket]()
    if num_ranks > 1:
        door = None if missing() else listen(rank, num_ranks, Path(folder))
        os.environ.update(system.gloo_environment())
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(Path(folder) / "store"), num_ranks
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=system.FOREVER)
        barrier()
        if door is not None:
            sockets = meet(rank, num_ranks, Path(folder), door)
    worker = Worker(rank, board, {other: Peer(other, end) for other, end in sockets.items()})
    pipe.send_bytes(UP)
    known = set(sys.modules)
    while (order := _next(pipe)) is not None:
        _serve(worker, pipe, order)
        if order.name in ("close", "look"):  # a learner's files may change before the next run
            system.forget_modules(known)
    os._exit(0)  # not sys.exit: threads of a broken link may never end


def _next(pipe: Connection) -> Order | None:
    try:
        return Order(*pickle.loads(pipe.recv_bytes()))
    except EOFError:
        return None


def _serve(worker: Worker, pipe: Connection, order: Order) -> None:
    """Carry out one order and answer with its result, or with a Failure."""
    try:
        sys.path[:] = order.path
        os.chdir(order.folder)
        torch.set_default_dtype(order.dtype)
        linecache.cache.update(order.sources)
        answer = getattr(worker, order.name)(*pickle.loads(order.arguments))
        reply = wire.pack(answer)
    except BaseException as error:  # a learner's sys.exit() is a failure like any other
        action = worker.interpreter.now if worker.interpreter else None
        reply = wire.pack(Failure.of(worker.rank, action, error))
    with contextlib.suppress(Exception):  # a layer may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    pipe.send_bytes(reply.numpy().tobytes())
