"""Where ranks compute and which link carries their messages, and why; link.py says how the links differ. Loads no torch
at the top: doctor() asks where torch may be broken.
"""

import functools
import os
import socket
from typing import NamedTuple

from ppcourse.runtime.machine import gpus

ON_CPU, ON_GPU = ("shared", "gloo"), ("nccl", "staged")
ALONE = "none: one rank has nobody to talk to"


class Choice(NamedTuple):
    """devices: for each rank, "cpu" or "cuda:0"; link: the link's name, a colon, and the reason."""

    devices: tuple[str, ...]
    link: str

    @property
    def device(self) -> str:
        """In one word, "cpu" or "cuda"."""
        return self.devices[0].partition(":")[0]


def choose(device: str, link: str, num_ranks: int) -> Choice:
    """Where `num_ranks` ranks compute, and what carries their messages. No process is started, CUDA neither.

    device   "cpu", "cuda", or "auto": the GPUs, if there are any and the link is not one between CPUs
    link     "nccl", "staged", "shared", "gloo", or "auto": for GPUs nccl if each rank has one, else staged

    Raises ValueError, with what there is and the ways out, for what cannot be had.
    """
    if link not in ("auto", *ON_CPU, *ON_GPU):
        raise ValueError(f"link is {link!r}; say 'nccl' or 'staged' on GPUs, 'shared' or 'gloo' on the CPU, or 'auto'.")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; say 'cpu' or 'cuda' (each rank finds its own GPU), or leave it out.")
    if device == "cpu" and link in ON_GPU:
        raise ValueError(f"device is 'cpu', but link {link!r} joins GPUs; leave one of the two out.")
    if device == "cuda" and link in ON_CPU:
        raise ValueError(
            f"link is {link!r}, which joins CPUs, but device is 'cuda'; say link='nccl' or 'staged', or device='cpu'."
        )
    asked = device == "cuda" or link in ON_GPU
    if device == "cpu" or link in ON_CPU:
        return Choice(("cpu",) * num_ranks, carrier(link, num_ranks))
    found = gpus.usable()
    if not found and not asked:
        return Choice(("cpu",) * num_ranks, f"{carrier(link, num_ranks)}; on the CPU, because {no_gpu()}")
    if not found and link != "nccl":
        what = "device is 'cuda'" if device == "cuda" else f"link is {link!r}"
        raise ValueError(f"{what}, but {no_gpu()}; say device='cpu' and leave the link out.")
    return Choice(tuple(f"cuda:{rank % max(found, 1)}" for rank in range(num_ranks)), _on_gpus(link, num_ranks, found))


def _on_gpus(link: str, num_ranks: int, found: int) -> str:
    """As `carrier`, for ranks on GPUs."""
    if link == "nccl" and found < num_ranks:
        return _more_ranks_than_gpus(num_ranks, found)
    if num_ranks == 1:
        return ALONE
    if link == "nccl" or (link == "auto" and found >= num_ranks):
        return f"nccl: each of the {num_ranks} ranks has a GPU of its own ({found} found)"
    many = f"{found} GPU{'s' * (found > 1)}"
    if found < num_ranks:
        return f"staged: {num_ranks} ranks share {many}, and NCCL wants one for each"
    return "staged: it was asked for"


def _more_ranks_than_gpus(num_ranks: int, found: int) -> str:
    """NCCL where ranks must share a GPU: only with a switch of its own, and only where the user has set it."""
    shares = found > 0 and gpus.may_share()
    if shares and os.environ.get(gpus.SHARING) == "1":
        return f"nccl: it was asked for, and {gpus.SHARING}=1 lets {num_ranks} ranks share {found} GPUs"
    fewer = f"p={found} or fewer ranks" if found > 1 else "p=1"
    ways = ["link='staged', by which ranks share a GPU"] * (found > 0) + ["device='cpu' with link='auto'", fewer]
    ways += [f"the environment variable {gpus.SHARING}=1, which this NCCL knows"] * shares
    if not found:
        ways, why = ways[:1], f" ({no_gpu()})"
    else:
        why = ""
    raise ValueError(
        f"p={num_ranks} needs {num_ranks} GPU{'s' * (num_ranks > 1)} for NCCL, found {found}{why};"
        f" take {', or '.join(ways)}."
    )


def no_gpu() -> str:
    """Why no rank can use a GPU."""
    if gpus.visible():
        return "this torch was built without CUDA"
    if gpus.installed():
        return f"{gpus.VISIBLE} hides every GPU"
    return "no GPU was found"


def carrier(link: str, num_ranks: int) -> str:
    """Between ranks on the CPU: the link's name, a colon, and the reason."""
    if link == "shared" and missing():
        raise ValueError(f"link is 'shared', but {missing()}; say 'gloo', or leave it out.")
    if num_ranks == 1:
        return ALONE
    if link == "gloo":
        return "gloo: it was asked for"
    return f"gloo: {missing()}" if missing() else "shared: the ranks are processes of one host"


@functools.cache
def missing() -> str:
    """Why messages cannot go through shared memory here; "" if they can."""
    if not (hasattr(os, "memfd_create") and hasattr(socket, "AF_UNIX")):
        return "this system has no memory that a process can hand to another"
    try:
        os.close(os.memfd_create("ppcourse"))
        for end in socket.socketpair(socket.AF_UNIX):
            end.close()
    except OSError as error:
        return f"this system allows no memory to be handed from process to process ({error.strerror})"
    return ""
