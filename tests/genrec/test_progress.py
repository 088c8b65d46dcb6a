from __future__ import annotations

import io
import itertools
import re
import sys
import threading

import pytest

from genrec import progress
from tests.serving.processes import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_clock_goes_on_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is a test's: every look at it is a quarter of a second later."""
    now = itertools.count(1e9, 0.25)
    monkeypatch.setattr("tqdm.std.time", lambda: next(now))
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    for total in (None, 3):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with progress.ticking("long work", total) as bar:
            until(lambda: "00:01" in sys.stderr.getvalue())  # a second passes, and nobody calls the bar
            bar.update()
        text = sys.stderr.getvalue()
        assert re.search(r"long work:.*00:00", text)
        assert text.endswith("\n") == (total is not None)  # a line without a total is gone at the end
        assert ("1/3" in text) == (total is not None)


def test_a_log_gets_a_plain_line_now_and_then_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.counting("all of it", 3, "item", delay=0) as outer:
        for _ in range(3):
            with progress.counting("a part", 2, "item", delay=0, leave=False) as bar:
                bar.update()
                bar.refresh()
            outer.update()
            outer.set_postfix(loss=1)
    text = sys.stderr.getvalue()
    assert not re.search(r"[^\x20-\x7e\n]", text), text
    assert "a part: 50%, 1.00 of 2.00, 00:00 so far, 00:00 to go\n" in text
    assert text.splitlines()[-1] == "all of it: 100%, 3.00 of 3.00, 00:00 so far, 00:00 to go, loss=1"


def test_what_is_left_is_told_by_all_that_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    monkeypatch.setattr(progress, "LINE_S", 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.counting("train", 100, "event", delay=0) as bar:
        for seconds in [1] * 49 + [51]:  # the last one is validated
            now += seconds
            bar.update()
        assert sys.stderr.getvalue().splitlines()[-1] == "train: 50%, 50.0 of 100, 01:40 so far, 01:40 to go"


def test_silent_when_captured_and_over_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    asked = []

    def place() -> float:
        asked.append(None)
        return 1.0

    with progress.ticking("long work", 3, place=place):
        until(lambda: len(asked) > 2)  # by now the bar was drawn anew, if silently
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyError), progress.ticking("long work"):
        raise KeyError
    written = sys.stderr.getvalue()
    assert written and not [thread for thread in threading.enumerate() if thread.name == "progress"]
