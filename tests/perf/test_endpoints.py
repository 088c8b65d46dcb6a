"""What a benchmark may say of the server that it sends to."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main
from perf.kit import endpoints, report


def test_more_streams_than_any_machine_has_are_refused(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "replay", str(tiny), "--streams", "1000000"]) == 2
    assert "streams: is 1000000 (accepted: 1 to 256)" in capsys.readouterr().err


@pytest.mark.parametrize("runs", ["--url=127.0.0.1:1", "--server-json=server.json"])
@pytest.mark.parametrize("option", ["beam-width", "threads", "streams"])
@pytest.mark.parametrize("name", ["replay", "overload", "sweep"])
def test_options_of_a_server_that_runs_already_are_refused(
    name: str, option: str, runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = ["--slo-p99-ms", "10"] if name == "sweep" else []
    assert main(["bench", name, "none", runs, f"--{option}=1", *needs]) == 2
    said = capsys.readouterr()
    assert f"{option}: is 1 of a server that runs already (accepted: none, as that has its own)" in said.err
    assert not said.out


def test_a_result_says_no_settings_of_a_server_that_it_has_not_started() -> None:
    parser = report.arguments("replay", "")
    endpoints.add_arguments(parser)
    here, there = (parser.parse_args(["none", *more]) for more in ([], ["--url", "127.0.0.1:1"]))
    assert endpoints.options_of(here) == {"ensemble": "recommend", **endpoints.OWN}
    assert endpoints.options_of(there) == {"ensemble": "recommend"}
    said = [report.settings_of(vars(each)) for each in (here, there)]
    assert [each["beam_width"] for each in said] == [128, None]
