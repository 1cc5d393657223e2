"""What a learner has solved and predicted, kept in one small file.

The file is `$PPCOURSE_PROGRESS`, or `~/.ppcourse/progress.json`. Whatever is wrong with it, a lesson goes
on: what cannot be read or written is told in one sentence, once, and kept in memory until the kernel ends.
"""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

try:
    import fcntl
except ImportError:  # Windows: the last of two notebooks that save at the same moment wins
    fcntl = None  # type: ignore[assignment]

Saved: TypeAlias = dict[str, dict[str, Any]]
"""exercises: {"4.2": {"solved": True, "tries": 3}}, predictions: {"3.1": 0.375}, and what else update() keeps."""

Number: TypeAlias = float | list[float]

unsaved: dict[Path, Saved] = {}  # by file: everything, if it could not be written there
warned: set[Path] = set()  # files about which the learner was told


def path() -> Path:
    """Where progress is saved."""
    return Path(os.environ.get("PPCOURSE_PROGRESS") or "~/.ppcourse/progress.json").expanduser()


def load() -> Saved:
    """Everything recorded so far."""
    file = path()
    return unsaved[file] if file in unsaved else _read(file)


def record(number: str, solved: bool) -> None:
    """Count a try at exercise `number`; once solved, it stays solved."""
    with _locked(path()):
        before = load()["exercises"].get(number, {"solved": False, "tries": 0})
        if not before["solved"]:
            _save("exercises", number, {"solved": solved, "tries": before["tries"] + 1})


def predict(number: str, value: Any) -> None:
    """Save the learner's prediction for question `number`, a number or several, and print it."""
    number = str(number)
    guess = _as_number(value)
    if value is None or value is ...:
        print(f"○ {number} predict first: replace ... with a number")
    elif guess is None:
        print(f"○ {number} a prediction is a number, or a list of numbers; this is {type(value).__name__}")
    else:
        with _locked(path()):
            _save("predictions", number, guess)
        print(f"✎ {number} you predict {_shown(guess)}")


def prediction(number: str) -> Number | None:
    """What the learner predicted for question `number`; None if nothing yet."""
    guess: Number | None = load()["predictions"].get(str(number))
    return guess


def update(section: str, name: str, change: Callable[[Any], Any]) -> None:
    """Keep, under `name` in `section`, what `change` makes of what was there; of None the first time."""
    with _locked(path()):
        _save(section, name, change(kept(section).get(name)))


def kept(section: str) -> dict[str, Any]:
    """By name, what update() has kept in `section`. A learner may have changed it: it may be anything."""
    return load().get(section, {})


def summary() -> None:
    """Print a table of all exercises: solved, tried, not tried."""
    from ppcourse.lab.graders import exercises

    saved = load()["exercises"]
    solved = sum(entry["solved"] for entry in saved.values())
    print(f"{solved} of {len(exercises())} exercises solved")
    for number, exercise in exercises().items():
        entry = saved.get(number, {"solved": False, "tries": 0})
        mark = "✓" if entry["solved"] else "✗" if entry["tries"] else "○"
        stars = "★" * exercise.difficulty
        tries = f", tried {entry['tries']} times" if entry["tries"] > 1 else ""
        print(f"{mark} {number:5} {stars:5} {exercise.minutes:3} min  {exercise.title}{tries}")


def _as_number(value: Any) -> Number | None:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 0:
        several = [_as_number(one) for one in value]
        return None if any(not isinstance(one, float | int) for one in several) else several  # type: ignore[return-value]
    try:
        number = value if type(value) is int else float(value)
        return number if math.isfinite(number) and not isinstance(value, str | bool) else None
    except Exception:  # of a whole number, that it is too large
        return None


def _shown(guess: Number) -> str:
    return ", ".join(_shown(one) for one in guess) if isinstance(guess, list) else f"{guess:.6g}"


def _read(file: Path) -> Saved:
    """What the file holds; a file that holds something else is put aside, not lost."""
    empty: Saved = {"exercises": {}, "predictions": {}}
    try:
        text = file.read_text(encoding="utf-8")
        saved: Any = json.loads(text) if text else empty
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except OSError as error:
        _warn(file, f"Your progress file {file} cannot be read ({error.strerror}): nothing is saved.")
        return unsaved.setdefault(file, empty)
    except (ValueError, RecursionError):
        saved = None
    if _valid(saved):
        return {**empty, **saved}
    aside = file.with_suffix(".broken")
    if file.is_file():
        with contextlib.suppress(OSError):
            file.replace(aside)
    _warn(file, f"Your progress file {file} is damaged: it is kept as {aside.name}, and a new one begins.")
    return empty


def _valid(saved: Any) -> bool:
    try:
        numbers = all(_as_number(guess) is not None for guess in saved["predictions"].values())
        sections = all(isinstance(section, dict) for section in saved.values())
        return (
            numbers
            and sections
            and all(
                type(entry["solved"]) is bool and type(entry["tries"]) is int for entry in saved["exercises"].values()
            )
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _save(section: str, number: str, entry: Any) -> None:
    file, saved = path(), load()
    saved.setdefault(section, {})[number] = entry
    try:
        if file.exists() and not (file.is_file() and os.access(file, os.R_OK)):
            raise OSError(0, "not a file that can be read")
        new = file.with_suffix(".new")
        new.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(file)  # whole or not at all, even if the kernel is killed now
        unsaved.pop(file, None)
    except OSError as error:
        unsaved[file] = saved
        way_out = "set PPCOURSE_PROGRESS to another file"
        _warn(file, f"Your progress cannot be saved in {file} ({error.strerror}): {way_out}.")


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One notebook at a time."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(file.with_suffix(".lock").open("w"))
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _warn(file: Path, sentence: str) -> None:
    if file not in warned:
        warned.add(file)
        print(sentence, file=sys.stderr)
