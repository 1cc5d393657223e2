"""Which link carries a run's messages, and why. Loads no torch: doctor() asks where torch may be broken.

shared   through memory that two ranks map; processes of one host
gloo     over torch.distributed; any processes
"""

import functools
import os
import socket


def carrier(link: str, num_ranks: int) -> str:
    """The link's name, a colon, and the reason. Raises ValueError for a link that cannot be had."""
    if link not in ("auto", "shared", "gloo"):
        raise ValueError(
            f"link is {link!r}, but messages go through shared memory or over gloo so far;"
            " say 'shared', say 'gloo', or leave it out."
        )
    if link == "shared" and missing():
        raise ValueError(f"link is 'shared', but {missing()}; say 'gloo', or leave it out.")
    if num_ranks == 1:
        return "none: one rank has nobody to talk to"
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
