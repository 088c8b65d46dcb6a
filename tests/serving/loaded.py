"""Clients of a test that ask all the time, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

PAUSE_S = 0.03  # between the requests of a client: what starts meanwhile needs the cores too
L = TypeVar("L", bound="UnderLoad")


class UnderLoad:
    """While it is entered the threads ask; `stopped` tells them to end, and one that hangs fails the test."""

    def __init__(self, *asking: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in asking]

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def goes_on(self) -> bool:
        """Whether a thread is to ask again, after a pause."""
        return not self._stop.wait(PAUSE_S)

    def __enter__(self: L) -> L:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"
