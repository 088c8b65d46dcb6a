"""`genrec batch --url` that goes on with what another run was answered: by the same server alone."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from cli import batch, batch_answers, batch_files
from cli.batch import _key
from cli.main import main, parser
from clients.client import Client
from clients.errors import Unreachable
from clients.wire import Recommendation
from deploy.ports import choose_ports
from tests.serving.processes import stub_of
from tests.serving.servers import brief_server
from tests.tiny import other_generator

Answers = Callable[[Sequence[Any], Any], Iterable[Recommendation]]


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [
        ("genrec-1-22-333-00000002-aaaa-cccc", True),  # it was started again
        ("genrec-1-22-333-00000002-bbbb-cccc", False),  # another model of the same items
        ("genrec-1-22-333-00000001-aaaa-dddd", False),
    ],
)
def test_lists_of_two_servers_are_not_put_into_one_file(
    name: str,
    goes_on: bool,
    shop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Blocks of one user; the shop has four. Each server answers every user with one item."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out = tmp_path / "lists.csv"

    def asked(called: str, item: int, users: int, port: int) -> int:
        @contextmanager
        def answers(_: Namespace, __: dict[str, Any]) -> Iterator[Answers]:
            left = iter(range(users))

            def answers_to(known: Sequence[Any], bar: Any) -> list[Recommendation]:
                if next(left, None) is None:
                    raise Unreachable("away")
                return [Recommendation(np.array([item]), np.zeros(1, np.float32), "model", 0, 0, 1, 1, 1)]

            yield answers_to

        monkeypatch.setattr(batch_answers, "server_answers", answers)
        monkeypatch.setattr(Client, "server_name", lambda _: called)
        return main(["batch", str(shop), "--out", str(out), "--url", f"127.0.0.1:{port}"])

    assert asked("genrec-1-22-333-00000001-aaaa-cccc", 7, 2, 1) == 2
    assert asked(name, 8, 4, 2) == 0
    assert ("goes on behind 2 users" in capsys.readouterr().err) == goes_on
    assert pyarrow.csv.read_csv(out)["item_id"].to_pylist() == ([7, 7, 8, 8] if goes_on else [8, 8, 8, 8])


@pytest.mark.serving
def test_a_server_that_comes_back_with_another_model_is_asked_for_no_more(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a rollout: the first of four users was answered by the model of before."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    other = other_generator(Path(shutil.copytree(shop, tmp_path / "other")), seed=1)
    out, ports, blocks_of = tmp_path / "lists.csv", choose_ports(), batch_files.blocks_of
    asked = ["batch", str(shop), "--out", str(out), "--url", ports.grpc_url]
    with ExitStack() as serving:

        def serve(artifact: Path) -> None:
            serving.close()
            options = {"beam_width": 32, "ensembles": ("recommend",), "grpc_port": ports.grpc}
            serving.enter_context(brief_server(artifact, **options))

        def blocks(artifact: Path, behind: int = 0) -> Iterator[batch_files.Block]:
            for block in blocks_of(artifact, behind):
                yield block
                serve(other)

        serve(shop)
        with monkeypatch.context() as patch:
            patch.setattr(batch_files, "blocks_of", blocks)
            assert main(asked) == 2
        assert "serves another artifact since" in capsys.readouterr().err and not out.exists()
        serve(shop)
        assert main(asked) == 0
        assert "goes on behind 1 user" in capsys.readouterr().err and out.exists()


def test_a_server_that_changes_and_changes_back_among_the_users_of_a_block_is_noticed(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a rollout that is undone: the second of four users is answered by the other model."""
    monkeypatch.setattr(batch, "CHECK_S", 0)
    called = "genrec-1-22-333-00000001-aaaa-cccc"

    @contextmanager
    def answers(_: Namespace, __: dict[str, Any]) -> Iterator[Answers]:
        def answers_to(known: Sequence[Any], bar: Any) -> Iterator[Recommendation]:
            nonlocal called
            for model in "abaa":
                called = f"genrec-1-22-333-00000001-{4 * model}-cccc"
                yield Recommendation(np.array([7]), np.zeros(1, np.float32), "model", 0, 0, 1, 1, 1)

        yield answers_to

    monkeypatch.setattr(batch_answers, "server_answers", answers)
    monkeypatch.setattr(Client, "server_name", lambda _: called)
    assert main(["batch", str(shop), "--out", str(tmp_path / "lists.csv"), "--url", "127.0.0.1:1"]) == 2
    assert "serves another artifact since" in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.serving
def test_a_model_that_is_loaded_again_is_waited_for(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process dies before the second of four users is asked for."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out, blocks_of = tmp_path / "lists.csv", batch_files.blocks_of
    with brief_server(shop, beam_width=32, ensembles=("recommend",)) as server:

        def blocks(artifact: Path, behind: int = 0) -> Iterator[batch_files.Block]:
            first, *others = blocks_of(artifact, behind)
            yield first
            os.kill(stub_of(server.pid, "validity_lookup"), signal.SIGKILL)
            yield from others

        monkeypatch.setattr(batch_files, "blocks_of", blocks)
        assert main(["batch", str(shop), "--out", str(out), "--url", server.grpc_url]) == 0
        assert server.restarts == 1


def test_a_server_without_a_name_is_known_by_its_address(shop: Path) -> None:
    def key(port: int, name: str) -> str:
        url = f"127.0.0.1:{port}"
        asked = parser().parse_args(["batch", str(shop), "--out", "lists.csv", "--url", url])
        return _key(asked, {}, 4, name)

    assert key(1, "") == key(1, "") != key(2, "")
    assert key(1, "genrec-1-22-333-00000001-aaaa-cccc") == key(2, "genrec-1-22-333-00000002-aaaa-cccc")


def test_a_server_that_is_away_holds_up_nobody_who_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request under way would have waited for it, for a minute."""
    asked, began = [], threading.Event()

    class Away:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Away:
            return self

        def __exit__(self, *_: object) -> None: ...

        def recommend(self, history: Sequence[int], **_: Any) -> Recommendation:
            if not len(history):
                return Recommendation(np.zeros(0, np.int64), np.zeros(0, np.float32), "model", 0, 0, 1, 1, 1)
            asked.append(history)
            began.set()
            raise Unreachable("away")

        recommend_and_rank = recommend

    monkeypatch.setattr(batch_answers, "Recommender", Away)
    monkeypatch.setattr(batch_answers, "Ranker", Away)
    a = Namespace(url="127.0.0.1:1", protocol="grpc", ensemble="recommend", top_k=1)
    with pytest.raises(KeyboardInterrupt), batch_answers.server_answers(a, {}) as answers_to:

        def ask() -> None:
            with suppress(Unreachable):
                list(answers_to([{"history": np.ones(1, np.int64)}], None))

        threading.Thread(target=ask, daemon=True).start()
        assert began.wait(60)
        raise KeyboardInterrupt
    assert len(asked) <= 2
