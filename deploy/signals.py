"""SIGINT, SIGTERM and, when a terminal closes, SIGHUP end what a person runs, once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
log = logging.getLogger("genrec.serve")


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Each of these signals leaves the body as KeyboardInterrupt does, and that is its end. For main threads only."""
    former = _heard_by(_interrupt, ENDING)
    try:
        yield
    except KeyboardInterrupt:
        log.info("ended")
    finally:
        _give_back(former)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP leave the body as an exception, as Ctrl-C does, and end the process after it.
    What comes behind the first signal is not heard. On main threads only.
    """
    former = end_by_signals()
    try:
        yield
    finally:
        _give_back(former)


def end_by_signals() -> dict[int, Any]:
    """From now on both do as in `ended_by_signals`, where this is the main thread, which alone is asked. What they did
    before.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    former = {signal.SIGINT: signal.getsignal(signal.SIGINT), **_heard_by(_end, ENDING[1:])}
    if former[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    return former


def _heard_by(handler: Callable[[int, Any], None], numbers: Iterable[int]) -> dict[int, Any]:
    """What was called before; of SIGHUP nothing, where it is ignored: `nohup` says so."""
    lives_on = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in numbers if number != signal.SIGHUP or not lives_on]
    return {number: signal.signal(number, handler) for number in heard}


def _give_back(former: Mapping[int, Any]) -> None:
    for number, handler in former.items():
        signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    """As `_interrupt`."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _interrupt(*_: object) -> None:
    """Leave once; a second signal must not cut the cleaning short."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
