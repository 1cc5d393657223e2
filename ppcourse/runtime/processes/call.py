"""Any function on a rank, with a time limit: what it returned, or where it stands."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ppcourse.runtime.errors import LinkError

LOOK = 0.2  # seconds for which a rank is watched, to see if it is busy
BUSY = 0.05  # of that time: a share that even a crowded machine leaves to a loop, and that waiting does not take


class Standing(NamedTuple):
    """Where a function stands that has not ended.

    frames   (file, line number, name, line), the outermost first
    busy     whether it takes the processor's time, as a loop does and a wait does not
    """

    frames: list[tuple[str, int, str, str]]
    busy: bool


def call(function: Callable[[int], Any], rank: int, limit: float) -> Any:
    """What function(rank) returns, or Standing if it has not ended after `limit` seconds.

    It runs in a thread, for one that waits in gloo can be asked where it is, but not woken. What it raises is
    raised here; a connection that broke, as LinkError, because another rank is the cause.
    """
    ended: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            ended.append((function(rank), None))
        except BaseException as error:  # sys.exit() too
            ended.append((None, error))

    thread = threading.Thread(target=work, daemon=True, name="call")
    thread.start()
    thread.join(limit)
    if not ended:
        return _standing(thread)
    value, error = ended[0]
    if isinstance(error, RuntimeError) and "gloo" in str(error):
        raise LinkError(str(error)) from error
    if error is not None:
        raise error
    return value


def _standing(thread: threading.Thread) -> Standing:
    before = time.process_time()
    time.sleep(LOOK)
    busy = time.process_time() - before > BUSY * LOOK
    stack = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    return Standing([(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack], busy)
