"""What layers keep in attributes: copies that stay as they were, and every change seen."""

import random
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ppcourse.runtime.stages.kept import copies_of, is_kept, same, tensors_among

Pair = namedtuple("Pair", "one other")


class Statistics:
    def __init__(self) -> None:
        self.total, self.seen = 0.0, [1, 2]


class Base:
    __slots__ = ("__hidden",)

    def __init__(self) -> None:
        self.__hidden = [0]

    def more(self) -> None:
        self.__hidden.append(1)


@dataclass(frozen=True, slots=True)
class Slots(Base):
    seen: list[int] = field(default_factory=list)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a list grows": (lambda: [1, 2], lambda x: x.append(3)),
    "a list is the same length": (lambda: [1, 2], lambda x: x.__setitem__(0, 5)),
    "a tensor in a list is written into": (lambda: [torch.ones(2)], lambda x: x[0].add_(1)),
    "a list in a tuple": (lambda: ([1], "a"), lambda x: x[0].append(2)),
    "a list in a named tuple": (lambda: Pair([1], 2), lambda x: x.one.clear()),
    "a dictionary gets a name": (lambda: {"a": 1}, lambda x: x.update(b=2)),
    "a dictionary gets another value": (lambda: {(1, 2): torch.zeros(1)}, lambda x: x[1, 2].fill_(3)),
    "an ordered dictionary": (lambda: OrderedDict(a=1, b=2), lambda x: x.popitem()),
    "a dictionary in a dictionary": (lambda: defaultdict(dict, a={"b": 1}), lambda x: x["a"].update(b=2)),
    "a name is another tensor": (lambda: {torch.ones(2): 1}, lambda x: x.update([x.popitem(), (torch.ones(2), 1)][1:])),
    "a set": (lambda: {1, 2}, lambda x: x.discard(1)),
    "a deque": (lambda: deque([1, 2], maxlen=2), lambda x: x.append(3)),
    "Python's generator": (lambda: random.Random(1), lambda x: x.random()),
    "numpy's generator": (lambda: np.random.default_rng(1), lambda x: x.random()),
    "torch's generator": (lambda: torch.Generator().manual_seed(1), lambda x: torch.rand(1, generator=x)),
    "an array": (lambda: np.zeros(3), lambda x: x.__setitem__(0, 1)),
    "an object's number": (Statistics, lambda x: setattr(x, "total", 1.0)),
    "an object's list": (Statistics, lambda x: x.seen.append(3)),
    "an object gets an attribute": (lambda: SimpleNamespace(a=1), lambda x: setattr(x, "b", 1)),
    "an object with slots": (Slots, lambda x: x.seen.append(1)),
    "a slot that a base has": (lambda: (lambda x: [Base.__init__(x), x][1])(Base()), Base.more),
    "another type": (lambda: [1], lambda x: x.__setitem__(0, True)),
    "what lies in itself": (lambda: (lambda x: [x.append(x), x][1])([1]), lambda x: x.__setitem__(0, 2)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_every_change_is_seen_and_the_copy_stays(case: str) -> None:
    make, change = CHANGES[case]
    value = make()
    copy, again = copies_of([value])[0], copies_of([value])[0]
    assert is_kept(value)
    assert type(copy) is type(value)
    assert same(copy, value)
    change(value)
    assert not same(copy, value)
    assert same(copy, again)


@pytest.mark.parametrize(
    "value", [float("nan"), torch.tensor([1, float("nan")]), np.array([float("nan")]), [float("nan")]]
)
def test_what_is_no_number_is_still_the_same(value: Any) -> None:
    assert same(value, copies_of([value])[0])


def test_one_thing_in_two_places_is_one_thing_in_the_copies() -> None:
    shared, x = [1], torch.ones(4)
    one, other, view = copies_of([{"a": shared, "x": x}, (shared, x), x[:2]])
    assert one["a"] is other[0] is not shared
    assert one["x"] is other[1] is not x
    view.zero_()
    assert torch.equal(one["x"], torch.tensor([0.0, 0, 1, 1]))
    assert torch.equal(x, torch.ones(4))


def test_modules_functions_and_what_is_written_in_c_are_left_alone() -> None:
    things = [nn.Linear(2, 2), len, Statistics, iter([1])]
    assert not any(map(is_kept, things))
    (inside,) = copies_of([things])
    assert all(one is other for one, other in zip(inside, things, strict=True))
    assert same(inside, things)
    assert not same([nn.ReLU()], [nn.ReLU()])


def test_tensors_are_found_wherever_they_lie() -> None:
    x, y = torch.ones(1), torch.zeros(2)
    assert [id(found) for found in tensors_among([{"a": [x, 1]}, SimpleNamespace(y=(y, x)), 3])] == [id(x), id(y)]
