"""What ends a command, ends it as Ctrl-C does: what it began is cleaned away first."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cli.run import run
from genrec.files import made_aside


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_what_was_begun(number: signal.Signals, tmp_path: Path) -> None:
    """As `genrec build` makes engines: beside the old ones."""
    former = signal.signal(number, lambda *_: pytest.fail("it was not heard: it would have ended at once"))
    (tmp_path / "engines").mkdir()

    def build() -> None:
        with made_aside(tmp_path / "engines") as aside:
            (aside / "engine").touch()
            signal.raise_signal(number)
            pytest.fail("it went on")

    try:
        with pytest.raises(SystemExit) as ended:
            run("genrec build", build)
    finally:
        signal.signal(number, former)
    assert ended.value.code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["engines"]
