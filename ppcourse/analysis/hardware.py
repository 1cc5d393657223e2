"""GPUs and links by name: the peaks that their makers print. What an application sees of them is for a measurement."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ppcourse.schedules.costs import is_size

GB = 1e9  # a datasheet's GB are taken as 10⁹ bytes; drivers may show a little more

WITHIN_NODE, BETWEEN_NODES = 10e-6, 20e-6
"""Seconds that a small message takes from GPU to GPU. Assumed, since no datasheet says so: measure yours, and give a
Link of your own."""


@dataclass(frozen=True)
class GPU:
    """One accelerator.

    memory   bytes
    flops    peak of dense matrix products a second, 16-bit inputs and 32-bit sums, without sparsity
    source   where the two are printed: title and address

    Raises ValueError for what is not a finite number above 0.
    """

    name: str
    memory: float
    flops: float
    source: str = ""

    def __post_init__(self) -> None:
        _check_positive("GPU", memory=self.memory, flops=self.flops)
        object.__setattr__(self, "memory", float(self.memory))
        object.__setattr__(self, "flops", float(self.flops))


@dataclass(frozen=True)
class Link:
    """The way from a GPU to another one.

    bandwidth   bytes a second in one direction; `math.inf` for a link that takes no time
    latency     seconds that a message takes however small it is
    source      where the bandwidth is printed: title and address

    Raises ValueError for a bandwidth that is not above 0 and a latency that is not a finite number of at least 0.
    """

    name: str
    bandwidth: float
    latency: float = WITHIN_NODE
    source: str = ""

    def __post_init__(self) -> None:
        if self.bandwidth != math.inf:
            _check_positive("Link", bandwidth=self.bandwidth)
        if not is_size(self.latency):
            raise ValueError(f"Link.latency is {self.latency!r}; it must be a finite number of at least 0.")
        object.__setattr__(self, "bandwidth", float(self.bandwidth))
        object.__setattr__(self, "latency", float(self.latency))

    def carry(self, size: float) -> float:
        """Seconds for a message of `size` bytes."""
        return self.latency + size / self.bandwidth


def all_reduce_time(size: float, members: int, link: Link) -> float:
    """2 (d − 1) messages of size ÷ d, one after the other: a ring of d members sums `size` bytes.

    Optimal in bytes; for small sizes a tree has fewer steps. Patarasuk and Yuan 2009 (Bandwidth optimal all-reduce
    algorithms for clusters of workstations).
    """
    return 2 * (members - 1) * link.carry(size / members) if members > 1 else 0.0


EXAMPLES = {
    "memory": "80e9 for 80 GB",
    "flops": "989e12 for 989 TFLOP/s",
    "bandwidth": "450e9 for 450 GB/s",
}


def _check_positive(kind: str, **numbers: float) -> None:
    for word, number in numbers.items():
        if not (is_size(number) and number > 0):
            right = f"it must be a finite number above 0: {EXAMPLES[word]}"
            raise ValueError(f"{kind}.{word} is {number!r}; {right}.")


# Titles and addresses of what the makers print, in source. Which of it has been held against the numbers:
#   read, in the makers' own pages      V100's peak; H200's memory and NVLink 4 (NVIDIA's MLPerf systems); HDR, NDR
#   computed from cores and clocks      the peaks of H100, H200, A100, V100 and RTX 4090 (tests/test_planner.py)
#   quoted by others only               the rest: memory of the others, L4, NVLink 2 and 3, EDR, PCI Express, Ethernet
# Tensor-core peaks with sparsity are twice these.
HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, https://resources.nvidia.com/en-us-tensor-core"
A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
V100 = "Programming Tensor Cores in CUDA 9, https://developer.nvidia.com/programming-tensor-cores-cuda-9-0"
V100_MEMORY = "NVIDIA V100, https://www.nvidia.com/en-us/data-center/v100/"
H200 = (
    "NVIDIA's systems in MLPerf Inference 4.1, https://github.com/mlcommons/inference_results_v4.1/tree/main/closed/"
    "NVIDIA/systems"
)
ADA = "NVIDIA Ada GPU Architecture, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
L4 = "NVIDIA L4 Tensor Core GPU, https://www.nvidia.com/en-us/data-center/l4/"
DGX1 = (
    "NVIDIA DGX-1 With Tesla V100 System Architecture, https://images.nvidia.com/content/pdf/"
    "dgx1-v100-system-architecture-whitepaper.pdf"
)
PCI_SIG = "PCI-SIG, Specifications, https://pcisig.com/specifications"
SUPERPOD = (
    "NDR Overview, https://docs.nvidia.com/dgx-superpod/design-guide-cabling-data-centers/latest/ndr-overview.html"
)
IBTA = "InfiniBand Trade Association, InfiniBand Roadmap, https://www.infinibandta.org/infiniband-roadmap/"
IEEE = "IEEE 802.3, 100GBASE, https://www.ieee802.org/3/"

GPUS: dict[str, GPU] = {
    "h200": GPU("H200 SXM", 141 * GB, 989.4e12, f"{H200}; peak: {HOPPER}"),
    "h100": GPU("H100 SXM", 80 * GB, 989.4e12, HOPPER),
    "a100-80": GPU("A100 SXM 80 GB", 80 * GB, 312e12, A100),
    "a100-40": GPU("A100 SXM 40 GB", 40 * GB, 312e12, A100),
    "v100-32": GPU("V100 SXM2 32 GB", 32 * GB, 125e12, f"{V100}; memory: {V100_MEMORY}"),
    "v100-16": GPU("V100 SXM2 16 GB", 16 * GB, 125e12, f"{V100}; memory: {V100_MEMORY}"),
    "l4": GPU("L4", 24 * GB, 121e12, f"{L4}: 242 with sparsity"),
    "rtx4090": GPU("RTX 4090", 24 * GB, 165.2e12, f"{ADA}: 16-bit inputs, 32-bit sums"),
}

# One direction, one GPU (or port). NVIDIA prints the sum of both directions: 900 GB/s for NVLink 4.
LINKS: dict[str, Link] = {
    "nvlink4": Link("NVLink 4", 450 * GB, WITHIN_NODE, f"{H200}: 18 links, 900 GB/s both ways"),
    "nvlink3": Link("NVLink 3", 300 * GB, WITHIN_NODE, f"{A100}: 600 GB/s both ways"),
    "nvlink2": Link("NVLink 2", 150 * GB, WITHIN_NODE, f"{DGX1}: six links, 300 GB/s both ways"),
    "pcie5": Link("PCIe 5.0 x16", 16 * 32e9 * 128 / 130 / 8, WITHIN_NODE, f"{PCI_SIG}: 32 GT/s a lane, 128b/130b"),
    "pcie4": Link("PCIe 4.0 x16", 16 * 16e9 * 128 / 130 / 8, WITHIN_NODE, f"{PCI_SIG}: 16 GT/s a lane, 128b/130b"),
    "pcie3": Link("PCIe 3.0 x16", 16 * 8e9 * 128 / 130 / 8, WITHIN_NODE, f"{PCI_SIG}: 8 GT/s a lane, 128b/130b"),
    "ndr": Link("InfiniBand NDR", 400e9 / 8, BETWEEN_NODES, f"{SUPERPOD}: four lanes of 100 Gbit/s"),
    "hdr": Link("InfiniBand HDR", 200e9 / 8, BETWEEN_NODES, f"{SUPERPOD}: four lanes of 50 Gbit/s"),
    "edr": Link("InfiniBand EDR", 100e9 / 8, BETWEEN_NODES, f"{IBTA}: 100 Gbit/s, 4x"),
    "ethernet100": Link("100 Gbit/s Ethernet", 100e9 / 8, BETWEEN_NODES, IEEE),
    "free": Link("a link that takes no time", math.inf, 0.0, "what the schedules' papers assume"),
}

Device = TypeVar("Device", GPU, Link)


def known(thing: str | Device, table: Mapping[str, Device], kind: type[Device]) -> Device:
    """The thing itself, or what its name stands for. Raises ValueError for a name that is not in the table."""
    if isinstance(thing, kind):
        return thing
    if not isinstance(thing, str) or thing not in table:
        near = difflib.get_close_matches(str(thing).lower(), table, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no {kind.__name__} {thing!r}; there are {', '.join(table)}.{hint}")
    return table[thing]
