"""An HSTU model of the next item behind a real tritonserver: its scores are the torch module's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import main
from clients.cascade import Candidates, Cascade, CascadeAnswer, CascadeRequest
from clients.errors import BadRequest
from clients.rank_wire import PreInference
from clients.ranker import Ranker
from deploy.launcher import RunningServer
from genrec.catalogue.items import Catalogue
from genrec.nn.hstu_checkpoint import load_hstu_next
from tests.oracles.next_asked import next_scores
from tests.serving.processes import until
from tests.serving.ranked import check, check_behind_a_retrieval, check_commands, ranking_server, text
from training.data.histories import Histories

TIMES, NOW = [10, 10, 500, 900, 5000, 10**6, 10**7], 10**7 + 60


@pytest.fixture(scope="module")
def ranking(tiny_hstu_next: Path) -> Iterator[RunningServer]:
    with ranking_server(tiny_hstu_next) as server:
        yield server


@pytest.fixture(scope="module")
def asked(tiny_hstu_next: Path) -> dict[str, Any]:
    """Arguments of a client."""
    ids = Catalogue.load(tiny_hstu_next / "catalogue.parquet").item_ids
    known = {"times": TIMES, "now": NOW}
    return {"history": ids[:7].tolist(), "candidates": ids[40:60].tolist(), "top_k": 20, **known}


@pytest.fixture(scope="module")
def want(tiny_hstu_next: Path, asked: dict[str, Any]) -> dict[int, float]:
    """Item -> score by torch."""
    found = next_scores(load_hstu_next(tiny_hstu_next / "model"), range(7), TIMES, NOW)
    return dict(zip(asked["candidates"], found[40:60].tolist(), strict=True))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_scores_are_torch_s_and_who_comes_back_is_there(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float], protocol: Any
) -> None:
    user = 1 if protocol == "grpc" else 2
    with Ranker(ranking.grpc_url if protocol == "grpc" else ranking.http_url, protocol) as ranker:
        found = [ranker.rank(**asked, user_id=user) for _ in range(2)]
        unknown = ranker.rank(asked["history"], asked["candidates"], 20)
    for each in found:
        check(each, want)
    assert [each.user_reused for each in found] == [0, 6]
    assert max(abs(want[i] - s) for i, s in zip(unknown.item_ids, unknown.scores, strict=True)) > 0.01


def test_the_command_line_asks_the_same(
    ranking: RunningServer, tiny_hstu_next: Path, asked: dict[str, Any], want: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    check_commands(tiny_hstu_next, ranking.grpc_url, asked, want, capsys)


@pytest.fixture
def of_data(tiny_hstu_next: Path, asked: dict[str, Any], tmp_path: Path) -> Callable[..., Path]:
    """The artifact with histories of one user, 40: what is asked, and `more` behind it."""

    def make(more: list[int], times: list[int]) -> Path:
        items = [*asked["history"], *more]
        histories = Histories(np.array([40]), np.array(items), np.array([0, len(items)]), np.array(times))
        histories.save(shutil.copytree(tiny_hstu_next, tmp_path / "own") / "histories.parquet", ["40"])
        return tmp_path / "own"

    return make


def test_the_command_line_sends_the_times_of_a_user(
    ranking: RunningServer, of_data: Callable[..., Path], asked: dict[str, Any], want: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = [f"--{name}={text(asked[name])}" for name in ("candidates", "now")]
    best, artifact = max(want, key=lambda item: want[item]), of_data([], TIMES)
    for where in ([], ["--url", ranking.grpc_url]):
        assert main.main(["rank", str(artifact), "--user", "40", *given, *where]) == 0
        assert f"{want[best]:8.3f}  item {best}" in capsys.readouterr().out
    later = [f"--times={text([each + 10**6 * n for n, each in enumerate(TIMES)])}", f"--now={2 * NOW}"]
    assert main.main(["rank", str(artifact), "--user", "40", given[0], *later]) == 0
    assert f"{want[best]:8.3f}  item {best}" not in capsys.readouterr().out, "given ones count"


def test_cascades_of_the_command_ask_when_the_held_out_item_was_taken(
    ranking: RunningServer, of_data: Callable[..., Path], asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ask, seen = Cascade.ask, []

    def spied(cascade: Cascade, history: Any, user: int, top_k: int, **known: Any) -> CascadeAnswer:
        seen.append((list(history), user, list(known["times"]), known["now"]))
        return ask(cascade, history, user, top_k, **known)

    monkeypatch.setattr(Cascade, "ask", spied)
    artifact = of_data(asked["candidates"][:1], [*TIMES, NOW])
    assert main.main(["cascade", str(artifact), "--url", ranking.grpc_url, "--retrieve", "16"]) == 0
    assert seen == [(asked["history"], 40, TIMES, NOW)]
    assert "of 1 rankings found KV of their user" in capsys.readouterr().out


def test_behind_a_retrieval_too(ranking: RunningServer, asked: dict[str, Any]) -> None:
    check_behind_a_retrieval(ranking.grpc_url, asked)


@pytest.mark.parametrize("given", [{"ratings": [5] * 7}, {"features": [1]}])
def test_what_it_does_not_read_is_refused_by_name(
    ranking: RunningServer, asked: dict[str, Any], given: dict[str, Any]
) -> None:
    problem = f"{next(iter(given))}: is given .*items and times alone"
    with Ranker(ranking.grpc_url) as ranker, pytest.raises(BadRequest, match=problem):
        ranker.rank(**asked, **given)


def test_a_cascade_finds_what_was_computed_ahead(
    ranking: RunningServer, asked: dict[str, Any], want: dict[int, float]
) -> None:
    past = {name: asked[name] for name in ("history", "times")}

    def retrieve(request: CascadeRequest) -> Candidates:
        with Ranker(ranking.grpc_url) as ranker:
            until(lambda: ranker.pre_infer(**past, user_id=30) == PreInference("ready", 6, 6, 0))
        return Candidates(asked["candidates"])

    given = {name: each for name, each in asked.items() if name != "candidates"}
    with (
        Ranker(ranking.grpc_url) as ranker,
        Cascade(ranker, retrieve, cascade_ms=60_000) as cascade,
    ):
        answer = cascade.ask(**given, user_id=30)
    check(answer.ranking, want)
    assert answer.ranking.user_reused == 6 and not answer.problem
