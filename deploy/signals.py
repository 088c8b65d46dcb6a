"""SIGINT and SIGTERM end what a person runs, once."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)
log = logging.getLogger("genrec.serve")


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Either signal leaves the body as KeyboardInterrupt does, and that is its end. For main threads only."""
    former = {number: signal.signal(number, _interrupt) for number in ENDING}
    try:
        yield
    except KeyboardInterrupt:
        log.info("ended")
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    """Leave once; a second signal must not cut the cleaning short."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
