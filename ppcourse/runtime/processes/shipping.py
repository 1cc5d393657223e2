"""What a learner defines in a cell travels to the ranks by value, with the lines that tracebacks show."""

import ctypes
import inspect
import io
import linecache
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import _inject_new_class, _inject_property, is_parametrized


class Shipper(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but code keeps the name of its file (cloudpickle 3.1 drops it), open files do not travel, layers
    with parametrizations do, and tensors in one memory, a weight and a view of it, arrive in one."""

    def __init__(self, file: io.BytesIO) -> None:
        own = {
            types.CodeType: self._code,
            io.TextIOWrapper: _refuse,
            torch.storage.TypedStorage: _typed,
            torch.UntypedStorage: _untyped,
        }
        self.dispatch_table = ChainMap(own, cloudpickle.Pickler.dispatch_table)
        self.files: set[str] = set()
        super().__init__(file)  # looks for dispatch_table, so it comes last

    def _code(self, code: types.CodeType) -> tuple[Any, ...]:
        self.files.add(code.co_filename)
        _, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
        return _code_with_filename, (parts, code.co_filename)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module) and is_parametrized(value):  # of a class that refuses to be pickled
            made_of = type(value).__base__
            return _empty, (made_of,), vars(value), None, None, _parametrized
        return super().reducer_override(value)


class Order(NamedTuple):
    """What is sent to a rank: which method of Worker, its arguments (pickled), and the sender's surroundings."""

    name: str
    arguments: bytes
    sources: Mapping[str, Any]
    path: list[str]
    folder: str
    dtype: torch.dtype


def order(name: str, *arguments: Any) -> bytes:
    """An order, ready to send. Raises what pickling raises if something cannot travel."""
    file = io.BytesIO()
    shipper = Shipper(file)
    shipper.dump(arguments)
    cells = {name for name in shipper.files if name in linecache.cache and not Path(name).exists()}
    sources = {name: linecache.cache[name] for name in cells}
    return pickle.dumps(
        tuple(Order(name, file.getvalue(), sources, sys.path, str(Path.cwd()), torch.get_default_dtype()))
    )


class _Finder(Shipper):
    """Notes the tensors that require a gradient in what it pickles, and leaves out what tensors hold."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: dict[int, Tensor] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.requires_grad:
                self.found[id(value)] = value
            return int, ()
        return super().reducer_override(value)


def weights_in(thing: Any) -> dict[int, Tensor]:
    """By id, the tensors requiring a gradient that would travel with `thing`; none if it cannot travel."""
    finder = _Finder()
    try:
        finder.dump(thing)
    except Exception:
        return {}
    return finder.found


def check_travels(things: Mapping[str, Any]) -> None:
    """Raise ValueError, in a sentence that names the culprit, if one of `things` cannot travel to a rank."""
    for name, thing in things.items():
        error = _error(thing)
        if error is not None:
            inside = next((where for where, part in _parts(thing) if _error(part) is not None), "")
            holds = f": its {inside} cannot" if inside else ""
            raise ValueError(
                f"{name} cannot travel to a rank{holds} ({error}); make such things inside forward(),"
                " or leave them out."
            )


def _error(thing: Any) -> str | None:
    try:
        Shipper(io.BytesIO()).dump(thing)
    except Exception as error:  # anything may be raised by a learner's __reduce__
        return " ".join(str(error).split())
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object, or what a function sees, with words for it."""
    for path, owner in thing.named_modules() if isinstance(thing, nn.Module) else [("", thing)]:
        for name, value in getattr(owner, "__dict__", {}).items():
            if not (name == "_modules" and isinstance(owner, nn.Module)):
                inside = f" of its layer {path}" if path else ""
                yield f"attribute {name!r}, a {type(value).__name__},{inside}", value
    if isinstance(thing, types.FunctionType):
        seen = inspect.getclosurevars(thing)
        for name, value in {**seen.globals, **seen.nonlocals}.items():
            yield f"variable {name!r}, a {type(value).__name__},", value


def _code_with_filename(parts: tuple[Any, ...], filename: str) -> types.CodeType:
    return types.CodeType(*parts).replace(co_filename=filename)


def _typed(storage: torch.storage.TypedStorage) -> tuple[Any, ...]:
    return _typed_storage, (storage._untyped_storage, storage.dtype)


def _untyped(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    if storage.device.type != "cpu":
        return storage.__reduce__()  # type: ignore[no-untyped-call, no-any-return]
    # not by way of numpy: a storage that numpy has seen can never be resized again, and this one is the caller's
    return _untyped_storage, (ctypes.string_at(storage.data_ptr(), storage.nbytes()),)


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=dtype, _internal=True
    )


def _untyped_storage(content: bytes) -> torch.UntypedStorage:
    whole = torch.empty(len(content), dtype=torch.uint8)  # aligned as torch likes it, which the bytes are not
    if content:
        whole.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return whole.untyped_storage()


def _empty(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)


def _parametrized(layer: nn.Module, state: dict[str, Any]) -> None:
    """What register_parametrization makes of a layer with this state."""
    vars(layer).update(state)
    _inject_new_class(layer)
    for name in state["_modules"]["parametrizations"]:
        _inject_property(layer, name)


def _refuse(file: Any) -> Any:
    raise pickle.PicklingError(f"cannot pickle the open file {getattr(file, 'name', '')!r}")
