"""Progress on stderr while something takes long: a bar on a terminal, else a plain line a minute, as a log can have."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

TICK_S = 1.0
DELAY_S = 2.0  # what is over sooner shows no bar
LINE_S = 60.0  # from one line in a log to the next; what is over sooner writes none
LINE = "{desc}: {percentage:.0f}%, {n_fmt} of {total_fmt}, {elapsed} so far, {remaining} to go{postfix}"
_hidden = False  # whether this process shows nothing


def hide() -> None:
    """Show nothing in this process from now on: another one of its kind does."""
    global _hidden
    _hidden = True


class _Lines(tqdm):
    """What a bar says, in a log: no carriage returns, no cursor."""

    disable: bool
    due = 0.0  # when a line may come; none has been asked for yet
    written = False

    @property
    def format_dict(self) -> Any:
        """Without the rate of the last updates, so that tqdm takes that of all: a line stands for a minute, and comes
        most likely behind a long update, or a validation.
        """
        return {**super().format_dict, "rate": None}

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """A line, unless the last one is not a minute old."""
        now = time.monotonic()
        if not self.due:
            self.due = now + LINE_S
        if now >= self.due:
            self.due = now + LINE_S
            self._write()

    def close(self) -> None:
        """The end is told of what had a line before."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)
            if self.written:
                self._write()

    def _write(self) -> None:
        self.written = True
        self.fp.write(f"{self}\n")
        self.fp.flush()


def counting(what: str, total: int, unit: str, **more: Any) -> Any:
    """A tqdm bar of `total` units, moved by whoever does the work; use it in `with`. `more` is as tqdm has it."""
    about = {"total": total, "desc": what, "unit": unit, "unit_scale": True, "delay": DELAY_S, **more}
    return _bar(LINE, **about)


@contextmanager
def ticking(
    what: str, total: int | None = None, unit: str = "it", place: Callable[[], float] | None = None
) -> Iterator[Any]:
    """A tqdm bar whose clock goes on between updates; without a `total` a line with the seconds, gone at the end.

    With `place` the bar is moved to what that says, of `total`, at every tick, and to the total at the end.
    """
    form = "{desc}: {elapsed}" if total is None else None
    over = threading.Event()
    with _bar(
        form or LINE, desc=what, total=total, unit=unit, bar_format=form, leave=total is not None
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


def _bar(line: str, **about: Any) -> Any:
    """A bar, or where nobody sees one the `line` of tqdm's fields."""
    about["disable"] = _hidden or about.get("disable", False)
    return tqdm(**about) if sys.stderr.isatty() else _Lines(**{**about, "bar_format": line})
