"""The time that a section may take: it stops before what would not fit, and is stopped if it does not return."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

RESERVE = 0.75  # of a section's seconds after which nothing more begins: the rest is for what has begun


class Allowance:
    """Seconds of a section.

    seconds   after so many its rank processes are killed, which ends whatever waits for them
    cut       what was left out for lack of time
    spent     whether that had to be
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cut: list[str] = []
        self.spent = False
        self._began = time.monotonic()

    def each(self, items: Sequence[Item], name: Callable[[Item], str] = str) -> Iterator[Item]:
        """The items, one after another, as long as one that takes no longer than the longest before it would fit."""
        longest = 0.0
        for number, item in enumerate(items):
            began = time.monotonic()
            if began + longest > self._began + RESERVE * self.seconds:
                self.cut += [name(left) for left in items[number:]]
                return
            yield item
            longest = max(longest, time.monotonic() - began)

    @contextmanager
    def held(self) -> Iterator[None]:
        """In here, the section ends with its seconds."""
        timer = threading.Timer(self.seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.spent = True
        for process in multiprocessing.active_children():
            process.kill()
