"""How the ranks of one host find each other: a Unix socket for every two of them, which lasts as long as the pool."""

import contextlib
import socket
import struct
from pathlib import Path

GREETING = struct.Struct("<q")  # the rank that calls
ROOM = 4 * 2**20  # bytes that a socket holds; the system gives less


def listen(rank: int, num_ranks: int, folder: Path) -> socket.socket:
    """A door in `folder`, at which the ranks above `rank` knock."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.chdir(folder):  # the whole path may be longer than an address can be
        door.bind(_name(rank))
    door.listen(num_ranks)
    return door


def meet(rank: int, num_ranks: int, folder: Path, door: socket.socket) -> dict[int, socket.socket]:
    """A socket to each other rank. Every rank must be listening by now; to knock waits for nobody."""
    sockets = {}
    for below in range(rank):
        sockets[below] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.chdir(folder):
            sockets[below].connect(_name(below))
        sockets[below].sendall(GREETING.pack(rank))
    for _ in range(rank + 1, num_ranks):
        caller, _ = door.accept()
        (above,) = GREETING.unpack(caller.recv(GREETING.size, socket.MSG_WAITALL))
        sockets[above] = caller
    door.close()
    for each in sockets.values():
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    return sockets


def _name(rank: int) -> str:
    return f"rank-{rank}.door"
