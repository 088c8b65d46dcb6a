"""SIGINT, SIGTERM and, when a terminal closes, SIGHUP end what a person runs, once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
log = logging.getLogger("genrec.serve")


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Each of these signals leaves the body as KeyboardInterrupt does, and that is its end. For main threads only."""
    lives_on = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
    ending = [number for number in ENDING if number != signal.SIGHUP or not lives_on]
    former = {number: signal.signal(number, _interrupt) for number in ending}
    try:
        yield
    except KeyboardInterrupt:
        log.info("ended")
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM leaves the body as an exception, as Ctrl-C does, and ends the process after it. On main threads only."""
    former = signal.getsignal(signal.SIGTERM)
    ours = end_by_sigterm()
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, former)


def end_by_sigterm() -> bool:
    """From now on SIGTERM does as in `ended_by_sigterm`; whether this is the main thread, where that can be asked."""
    if threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGTERM, _end)
    return True


def _end(number: int, _: object) -> None:
    """As `_interrupt`."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _interrupt(*_: object) -> None:
    """Leave once; a second signal must not cut the cleaning short."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
