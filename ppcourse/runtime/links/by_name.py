"""The link of a job, by its name; link.py says how they differ."""

from collections.abc import Mapping

import torch

from ppcourse.runtime.links.device_link import DeviceLink, Ferry
from ppcourse.runtime.links.link import GlooLink, Link
from ppcourse.runtime.links.nccl import Communicator, Nccl, communicators
from ppcourse.runtime.links.shared import Peer, SharedLink
from ppcourse.runtime.links.staged import Staged
from ppcourse.runtime.machine.streams import streams_of
from ppcourse.schedules.channels import Channel
from ppcourse.schedules.schedule import Schedule


def open_link(
    name: str,
    plan: Schedule,
    rank: int,
    peers: Mapping[int, Peer],
    latency: float = 0.0,
    device: str = "cpu",
    known: dict[Channel, Communicator] | None = None,
) -> Link:
    """A rank's end of the link `name`; every rank opens it at the same time.

    name     shared, gloo, nccl or staged, and maybe a colon and why
    peers    to the other ranks, where all are processes of one host that can share memory
    known    the communicators of this rank's earlier jobs; new ones are added
    """
    name = name.partition(":")[0]
    if name in ("nccl", "staged"):
        carrier = open_link("shared" if peers else "gloo", plan, rank, peers, latency)
        return DeviceLink(plan, rank, carrier, _ferry(name, plan, rank, torch.device(device), known))
    if name == "gloo":
        return GlooLink(plan, rank, latency)
    return SharedLink(plan, rank, peers, latency)


def _ferry(
    name: str, plan: Schedule, rank: int, device: torch.device, known: dict[Channel, Communicator] | None
) -> Ferry:
    streams = streams_of(device)
    if name == "staged":
        return Staged(streams)
    return Nccl(streams, communicators(plan, rank, device, {} if known is None else known))
