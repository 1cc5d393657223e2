"""What a layer keeps in an attribute, as values: copies of it, and whether it is still the same.

    values       tensors, arrays, numbers, texts
    containers   lists, tuples, dictionaries, sets, deques, and objects of plain classes, with what lies in them
    sources      of random numbers: Python's, numpy's and torch's generators

All else (modules, functions, what is written in C) is taken as it is, and counts as the same as long as it
is the same thing.
"""

import copy
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from types import MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ppcourse.runtime.values.together import copied

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
MAPS = (dict, OrderedDict, defaultdict, Counter)
LISTS = (list, deque)
SETS = (set, frozenset)
SOURCES = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
VALUES = (*PLAIN, *SOURCES, tuple, Tensor, np.ndarray)
CONTAINERS = (*MAPS, *LISTS, *SETS)


def is_kept(value: Any) -> bool:
    """Whether a change of it would be seen."""
    return isinstance(value, VALUES) or type(value) in CONTAINERS or _open(value)


def copies_of(values: Sequence[Any]) -> list[Any]:
    """The same values, in memory of their own. What was one thing is one thing, also in several of the values."""
    found = dict[int, Any]()
    for _ in _walk(values, found):
        pass
    tensors = [x for x in found.values() if isinstance(x, Tensor) and not is_lazy(x)]
    new = dict(zip(map(id, tensors), copied(tensors), strict=True))
    return [_copy(value, new) for value in values]


def tensors_among(values: Iterable[Any]) -> list[Tensor]:
    return [x for x in _walk(values, {}) if isinstance(x, Tensor)]


def same(one: Any, other: Any, begun: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether what two attributes hold is equal. `begun`: pairs of containers, in which these lie."""
    pair = id(one), id(other)
    if one is other or pair in begun:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _same_tensor(one, other)
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, PLAIN):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, torch.Generator):
        return torch.equal(one.get_state(), other.get_state())
    if isinstance(one, SOURCES):
        return pickle.dumps(one) == pickle.dumps(other)
    if type(one) in SETS:
        return bool(one == other)
    if not is_kept(one):
        return False
    ones, others = _parts(one), _parts(other)
    if len(ones) != len(others) or not all(map(_is_name, _names(one), _names(other))):
        return False
    return all(same(a, b, begun | {pair}) for a, b in zip(ones, others, strict=True))


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    if is_lazy(one) or is_lazy(other) or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.layout is not torch.strided or one.is_nested or torch.equal(one, other):
        return bool(torch.equal(one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())  # what is no number is still there


def _open(value: Any) -> bool:
    """Whether an object is all that its attributes say: of a class written in Python, and nothing that is called."""
    kind = type(value)
    new: Any = kind.__new__
    if isinstance(value, nn.Module | ModuleType) or callable(value):
        return False
    if new is not object.__new__ and kind is not SimpleNamespace:
        return False
    return bool(_attributes(value))


def _attributes(value: Any) -> dict[str, Any]:
    """Those in its __dict__, and in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, MemberDescriptorType) and hasattr(value, name):
                found[name] = slot.__get__(value)
    return found


def _names(value: Any) -> list[Any]:
    return list(value) if type(value) in MAPS else list(_attributes(value)) if _open(value) else []


def _is_name(one: Any, other: Any) -> bool:
    return one is other or (hash(one) == hash(other) and bool(one == other))  # what has no truth is its own hash


def _parts(value: Any) -> list[Any]:
    if type(value) in MAPS:
        return list(value.values())
    if isinstance(value, tuple) or type(value) in LISTS:
        return list(value)
    return list(_attributes(value).values()) if _open(value) else []


def _walk(values: Iterable[Any], found: dict[int, Any]) -> Iterator[Any]:
    """Each thing once, with all that lies in it."""
    for value in values:
        if not isinstance(value, PLAIN) and id(value) not in found:
            found[id(value)] = value
            yield value
            yield from _walk(_parts(value), found)


def _copy(value: Any, new: dict[int, Any]) -> Any:
    """`new`: by id, the copies that there are already."""
    if isinstance(value, (*PLAIN, Tensor)) or id(value) in new or not is_kept(value):
        return new.get(id(value), value)
    if isinstance(value, tuple):
        parts = [_copy(part, new) for part in value]
        made = value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    elif isinstance(value, SOURCES):
        made = copy.deepcopy(value)
    elif _open(value):
        kind: Any = type(value)
        made = new[id(value)] = kind.__new__(kind)
        for name, part in _attributes(value).items():
            object.__setattr__(made, name, _copy(part, new))
    else:
        made = new[id(value)] = copy.copy(value)
        places = range(len(made)) if type(value) in LISTS else list(made) if type(value) in MAPS else ()
        for place in places:
            made[place] = _copy(made[place], new)
    return new.setdefault(id(value), made)
