"""Progress on stderr while something takes long.

For terminals only: in a captured log every tick would be a line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

TICK_S = 1.0
DELAY_S = 2.0  # what is over sooner shows no bar


def counting(what: str, total: int, unit: str) -> Any:
    """A tqdm bar of `total` units, moved by whoever does the work; use it in `with`."""
    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, delay=DELAY_S, disable=None)


@contextmanager
def ticking(
    what: str, total: int | None = None, unit: str = "it", place: Callable[[], float] | None = None
) -> Iterator[Any]:
    """A tqdm bar whose clock goes on between updates; without a `total` a line with the seconds, gone at the end.

    With `place` the bar is moved to what that says, of `total`, at every tick, and to the total at the end.
    """
    form = "{desc}: {elapsed}" if total is None else None
    over = threading.Event()
    with tqdm(
        desc=what, total=total, unit=unit, bar_format=form, leave=total is not None, disable=None
    ) as bar:

        def tick() -> None:
            while not over.wait(TICK_S):
                if place is not None:
                    bar.n = round(place())
                bar.refresh()

        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            over.set()
            thread.join()
        if place is not None:
            bar.n = total
