"""What a benchmark may say of the server that it sends to."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main


def test_more_streams_than_any_machine_has_are_refused(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "replay", str(tiny), "--streams", "1000000"]) == 2
    assert "streams: is 1000000 (accepted: 1 to 256)" in capsys.readouterr().err
