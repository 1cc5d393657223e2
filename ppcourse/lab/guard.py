"""Running a learner's code, which may raise anything, exit, or never end."""

import contextlib
import ctypes
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ppcourse.lab.torch_state import restore, torch_state

TICK = 0.05
NOT_THE_LEARNERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
    "<frozen",
)


class TimeUp(BaseException):
    """Ends code that has run too long. No Exception, so that `except Exception: pass` lets it through.

    place   where the code was when its time was up
    """

    place = ""


class Outcome(NamedTuple):
    """What the code returned, or what it raised."""

    value: Any = None
    error: BaseException | None = None


def attempt(work: Callable[[], Any], limit: float) -> Outcome:
    """Run `work`, for `limit` seconds at most; TimeUp is the error of one that took longer.

    Whatever the code does, this returns; only a real Ctrl-C comes through, as KeyboardInterrupt. There are
    two exceptions. One is a single call into C that never looks at signals, as `sum(itertools.count())`.
    The other, outside the main thread, is a bare `except:` around calls that take nearly all the time.
    """
    tracer, torch_before = sys.gettrace(), torch_state()
    bell = Bell()
    with _interrupts_noted() as interrupts, _time_limit(limit, bell):
        try:
            try:
                outcome = Outcome(work())
            finally:
                sys.settrace(tracer)
                bell.armed = False
        except BaseException as error:
            sys.settrace(tracer)
            bell.armed = False
            outcome = Outcome(error=error)
    restore(torch_before)
    if interrupts:
        raise KeyboardInterrupt from None
    if bell.rings:  # what came of it, a lock released twice or a bare `except`, is only a consequence
        late = TimeUp()
        late.place = bell.place
        return Outcome(error=late)
    return outcome


def place(error: BaseException) -> str:
    """The last line of the learner's own that led to the error; "" if there is none."""
    return error.place if isinstance(error, TimeUp) else last_own_line(traceback.extract_tb(error.__traceback__))


def last_own_line(frames: traceback.StackSummary) -> str:
    own = [f for f in frames if f.line and not f.filename.startswith(NOT_THE_LEARNERS)]
    if not own:
        return ""
    last = own[-1]
    in_cell = "ipykernel_" in last.filename or last.filename.startswith("<")
    where = "your cell" if in_cell else Path(last.filename).name
    return f"line {last.lineno} of {where}: {last.line}"


class Bell:
    """Rings when the time is up, and again every tick until it is disarmed."""

    def __init__(self) -> None:
        self.armed, self.rings, self.place = True, 0, ""

    def ring(self, frame: FrameType | None) -> bool:
        """Count a ring, unless disarmed; at the first one in the learner's code remember where that was."""
        if self.armed:
            self.rings += 1
            if not self.place:
                self.place = last_own_line(traceback.extract_stack(frame))
        return self.armed


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[bool]]:
    """A list that is empty until Ctrl-C is pressed: the learner's code may raise KeyboardInterrupt itself."""
    noted: list[bool] = []
    usual = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or not callable(usual):
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(True)
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, usual)


@contextlib.contextmanager
def _time_limit(limit: float, bell: Bell) -> Iterator[None]:
    """From `limit` seconds on, raise TimeUp in this thread every tick, as long as the bell is armed."""
    by_signal = _in_main_thread() and hasattr(signal, "setitimer")  # which also ends a sleep or a wait
    with _alarm(limit, bell) if by_signal else _watcher(limit, bell):
        yield


@contextlib.contextmanager
def _alarm(limit: float, bell: Bell) -> Iterator[None]:
    """By a signal. Whoever else uses this timer gets it back."""

    def on_signal(_: int, frame: FrameType | None) -> None:
        if bell.ring(frame):
            _raise_again(frame, bell.rings)
            raise TimeUp

    began = time.monotonic()
    usual = signal.signal(signal.SIGALRM, on_signal)
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(TICK, left - (time.monotonic() - began)), interval)


def _raise_again(frame: FrameType | None, lines: int) -> None:
    """Raise TimeUp once more, some lines on: behind the bare `except:` that may catch the first one."""

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines -= event == "line"
        if lines <= 0:
            raise TimeUp
        return trace

    while frame and frame.f_code is not attempt.__code__:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)


@contextlib.contextmanager
def _watcher(limit: float, bell: Bell) -> Iterator[None]:
    """By a thread, where this one is not the main one, or there are no such signals."""
    me = threading.get_ident()
    done = threading.Event()

    def watch() -> None:
        done.wait(limit)
        while not done.wait(TICK) and bell.ring(sys._current_frames().get(me)):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(TimeUp))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
