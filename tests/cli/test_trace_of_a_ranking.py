"""`genrec trace` of a ranking, by a server that finds fewer candidates than are usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main
from deploy.ports import choose_ports
from tests.serving.servers import brief_server


@pytest.mark.serving
def test_a_ranking_is_drawn_of_as_many_as_the_server_finds(
    tiny_ranker: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that is given stays."""
    url = f"http://127.0.0.1:{choose_ports().http}/v1/traces"
    with brief_server(
        tiny_ranker, beam_width=16, ensembles=("recommend_and_rank",), trace_url=url
    ) as running:
        given = ["trace", str(running.run_dir / "server.json"), "--ensemble", "recommend_and_rank"]
        given += ["--history", str(items[0])]
        assert main(given) == 0
        assert "score_candidates" in capsys.readouterr().out
        assert main([*given, "--retrieve", "17"]) == 2
        said = capsys.readouterr()
    assert "retrieve: is 17 (accepted: 1 to 16" in said.err
    assert "encode_history" in said.out and "score_candidates" not in said.out
