"""A sign of life on stderr while something long says nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

TICK_S = 1.0


@contextmanager
def ticking(what: str, total: int | None = None, unit: str = "it") -> Iterator[Any]:
    """A tqdm bar whose clock goes on between updates; without a `total` a line with the seconds, gone at the end.

    For terminals only: in a captured log every tick would be a line.
    """
    form = "{desc}: {elapsed}" if total is None else None
    over = threading.Event()
    with tqdm(
        desc=what, total=total, unit=unit, bar_format=form, leave=total is not None, disable=None
    ) as bar:

        def tick() -> None:
            while not over.wait(TICK_S):
                bar.refresh()

        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            over.set()
            thread.join()
