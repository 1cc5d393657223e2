"""How much memory the messages of a channel take at one of its ends: now, and at most."""

import threading


class Level:
    """Bytes. The row and the threads of a link may all change it, so each change is whole.

    now    what is taken
    most   the most since the last reset
    """

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """`size` bytes more, or less if it is negative."""
        with self._lock:
            self.now += size
            self.most = max(self.most, self.now)

    def reset(self) -> None:
        with self._lock:
            self.most = self.now
