"""DualPipe and DualPipeV: microbatches enter from both ends, and a forward of one stream runs together with a
backward of the other, so that each hides the other's communication."""

from collections import deque
from itertools import accumulate, count

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import Placement, bidirectional, vee
from ppcourse.schedules.schedule import Schedule


def dualpipe(p: int, m: int) -> Schedule:
    """Two streams, one from each end: half of the microbatches enter at rank 0, the others at rank p-1. So each
    rank holds two stages, each stage lives on two ranks, and their gradients are summed.

    m counts both streams. p and m are even and m is at least 2p; else ValueError.

    DeepSeek-V3 report, §3.2.1; bubble (p/2 - 1)(F&B + B - 3W) with its B, the full backward (exact if
    F = I = W); 2 copies of the weights, p + 1 microbatches held.
    """
    if p % 2:
        raise ValueError(f"p is {p}, but dualpipe pairs the ranks from both ends: p is even, for example {p + 1}.")
    _check_count("dualpipe", p, m, even=True)
    rows = []
    for r in range(p):
        # a rank of the second half sees the streams the other way round
        first, second = (0, m // 2) if r < p // 2 else (m // 2, 0)
        rows.append(_row(p // 2, min(r, p - 1 - r), m // 2, first, second))
    return _joined("dualpipe", bidirectional(p, m), m, rows)


def dualpipe_v(p: int, m: int) -> Schedule:
    """DualPipe folded in the middle: one stream down the ranks and back up, so one copy of the weights suffices.

    Each rank holds stages r and 2p-1-r. m is at least 2p; else ValueError. DeepSeek's DualPipe repository; as in
    torch.distributed.pipelining.
    """
    _check_count("dualpipe-v", p, m, even=False)
    return _joined("dualpipe-v", vee(p), m, [_row(p, r, m, 0, 0) for r in range(p)])


def _check_count(name: str, p: int, m: int, even: bool) -> None:
    if m < 2 * p or (even and m % 2):
        right = f"at least 2p = {2 * p}" + (" and even" if even else "")
        valid = max(2 * p, m + m % 2 if even else m)
        raise ValueError(f"m is {m}, but {name} on p = {p} ranks needs {right}; the nearest valid m is {valid}.")


Step = tuple[Action, ...]  # one action, or the F and the B of an overlapped pair


def _row(n: int, h: int, each: int, first: int, second: int) -> list[Step]:
    """The steps of the rank that is `h` ranks away from the end at which its stream 0 enters.

    n         ranks from an end to the middle; the rank holds stage h of stream 0 and stage 2n-1-h of stream 1
    far       ranks between it and the middle        near    ranks between it and the end, itself included
    each      microbatches of a stream               first, second    the first microbatch of streams 0 and 1

        n = 2, each = 4     h = 0: F0 F0 F0 F1 I1 W F1 F0+B1 F1+B0 B1 F1+B0 B1 I0 W I0 W
                            h = 1: F0 F1 F0 F1 F0 B1 F1+B0 F0+B1 F1+B0 B1 B0 I1 I0 W W
    """
    far, near = n - 1 - h, h + 1
    half, odd = divmod(near, 2)
    words = ["F0"] * (2 * far)  # fill the way to the middle and back
    words += ["F0", "F1"] * near
    words += ["I1", "W", "F1"] * far  # nothing of stream 0 is left to join with: a W fills
    # in the middle the first pair stays apart, for its B may start before its F
    words += ["F0+B1", "F1+B0"] if far else ["F0", "B1", "F1+B0"]
    words += ["F0+B1", "F1+B0"] * (each - 2 * n + h)
    words += ["B1", "F1+B0"] * far
    # while the streams run dry, W is put off for the slots in which the rank would wait
    words += ["B1", "B0"] * half + ["B1", "I0"] * odd + ["I1", "I0"] * half
    words += ["W", "I0"] * far
    words += ["W"] * near
    return _numbered(words, ((h, first), (2 * n - 1 - h, second)))


def _numbered(words: list[str], streams: tuple[tuple[int, int], tuple[int, int]]) -> list[Step]:
    """`F0` becomes the next forward of stream 0, `B1` or `I1` the next backward of stream 1, and `W` belongs to
    the oldest I without one. streams[number]: its stage on this rank, and its first microbatch."""
    forwards, backwards = ([count(first) for _, first in streams] for _ in range(2))
    put_off: deque[Action] = deque()

    def action(word: str) -> Action:
        if word == "W":
            return put_off.popleft()
        op, stream = Op(word[0]), int(word[1])
        stage, i = streams[stream][0], next((forwards if op is Op.F else backwards)[stream])
        if op is Op.I:
            put_off.append(Action(stage, Op.W, i))
        return Action(stage, op, i)

    return [tuple(action(part) for part in word.split("+")) for word in words]


def _joined(name: str, placement: Placement, m: int, rows: list[list[Step]]) -> Schedule:
    """The schedule of these rows; steps of two actions are its overlapped pairs."""
    overlapped = set()
    for rank, row in enumerate(rows):
        starts = accumulate((len(step) for step in row), initial=0)
        overlapped |= {(rank, position) for position, step in zip(starts, row, strict=False) if len(step) == 2}
    flat = tuple(tuple(action for step in row for action in step) for row in rows)
    return Schedule(name, placement, m, flat, frozenset(overlapped))
