"""`genrec batch`: every user's list is what he is answered when he is asked for alone."""

from __future__ import annotations

import re
import shutil
import threading
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from build.catalogue import remove_items
from cli import batch_files
from cli.batch import _key
from cli.batch_answers import patiently
from cli.main import main, parser
from clients.errors import Overloaded, Unreachable
from clients.recommender import Recommender
from deploy.launcher import RunningServer, running_server
from deploy.ports import choose_ports
from deploy.switch import switch
from ensembles.local import LocalRecommender, request
from export.hstu_delta import export_delta
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import ITEMS, KEYS, load_keys
from genrec.errors import ArtifactError
from genrec.manifest import NAME
from tests.ensembles.known_users import with_known_users
from tests.oracles.hstu_further import changed_further
from training.data.histories import Histories

Row = tuple[str, int, float]  # a user, an item of his, its score
WIDTH = ["--beam-width", "32"]


def batch(artifact: Path, out: Path, *more: str) -> int:
    return main(["batch", str(artifact), "--out", str(out), *more])


def rows_of(path: Path) -> list[Row]:
    """In their order, whose ranks are checked."""
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    users = table["user"].to_pylist()
    for user, rank, before in zip(
        users[1:], table["rank"].to_pylist()[1:], table["rank"].to_pylist(), strict=False
    ):
        assert rank in (1, before + 1), user
    return list(zip(users, table["item_id"].to_pylist(), table["score"].to_pylist(), strict=True))


def check(found: list[Row], want: list[Row]) -> None:
    """Items and users to the letter, scores but for rounding: batches are others."""
    assert [each[:2] for each in found] == [each[:2] for each in want] and found
    np.testing.assert_allclose([each[2] for each in found], [each[2] for each in want], rtol=0, atol=1e-4)


@pytest.mark.serving
@pytest.mark.parametrize("where", ["here", "grpc", "http"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_everyone_gets_what_he_is_answered_alone(
    shop: Path,
    server: RunningServer,
    tmp_path: Path,
    where: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = server.http_url if where == "http" else server.grpc_url
    asked = WIDTH if where == "here" else ["--url", url, "--protocol", where]
    out = tmp_path / f"lists.{kind}"
    assert batch(shop, out, "--top-k", "7", "--exclude-history", *asked) == 0
    assert "4 users" in (said := capsys.readouterr().err) and "4 by model, catalogue version 1" in said
    want = []
    with Recommender(server.grpc_url) as recommender:
        for user, history in zip("abcd", Histories.load(shop / "histories.parquet").rows(), strict=True):
            answer = recommender.recommend(history, 7, exclude_history=True)
            want += [
                (user, *each) for each in zip(answer.item_ids.tolist(), answer.scores.tolist(), strict=True)
            ]
    check(rows_of(out), want)
    assert len(want) == 4 * 7 and not list(tmp_path.glob("*.partial"))


def test_a_ranking_reads_all_that_is_known_of_a_user(
    tiny_hstu: Path, items: list[int], tmp_path: Path
) -> None:
    artifact, out = with_known_users(tiny_hstu, items, tmp_path), tmp_path / "lists.csv"
    assert batch(artifact, out, "--ensemble", "recommend_and_rank", "--top-k", "6", *WIDTH) == 0
    want = []
    with LocalRecommender(artifact, 32, decoder="recommend_and_rank", pool_user_mb=1) as local:
        for name, user in (("anna", 7), ("bert", 8)):
            asked = {"user_id": np.array([[user]]), "retrieve": np.array([[32]], np.int32)}
            (answer,) = local.runtime.run([asked | {"top_k": request([], 6)["top_k"]}])
            want += [(name, *each) for each in zip(answer["item_ids"][0], answer["scores"][0], strict=True)]
    check(rows_of(out), want)
    assert [each[2] for each in want[:6]] != [each[2] for each in want[6:]]  # features of one alone are known


def test_items_are_spelled_as_in_the_source_and_wishes_count(
    shop: Path, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, out = shutil.copytree(shop, tmp_path / "artifact"), tmp_path / "lists.parquet"
    keys = [f"sku {item}, red" for item in items[:-1]] + [None]
    pq.write_table(pa.table({"item_id": items, "key": keys}, schema=KEYS), artifact / ITEMS)
    only = ",".join(f'"{keys[place]}"' for place in (3, 5))
    assert batch(artifact, out, "--only", only, *WIDTH) == 0
    assert "4 lists of fewer than 10 items" in capsys.readouterr().err
    table = pq.read_table(out)
    assert len(table) == 8 and set(table["item"].to_pylist()) == {keys[3], keys[5]}
    assert set(table["item_id"].to_pylist()) == {items[3], items[5]}


def test_a_run_that_fails_leaves_what_was_there(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, nobody = tmp_path / "lists.csv", f"127.0.0.1:{choose_ports().http}"
    out.write_text("of yesterday")
    assert batch(shop, out, "--url", nobody, "--protocol", "http") == 2
    assert nobody in capsys.readouterr().err
    assert out.read_text() == "of yesterday" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_run_that_ended_is_gone_on_with(
    shop: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of one user; the shop has four."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out, whole, tables = tmp_path / f"lists.{kind}", tmp_path / f"whole.{kind}", batch_files._table
    assert batch(shop, whole, *WIDTH) == 0
    out.write_text("of yesterday")

    def ends_at(calls: int, error: BaseException) -> None:
        left = iter(range(calls))

        def table(*given: Any) -> pa.Table:
            if next(left, None) is None:
                raise error
            return tables(*given)

        monkeypatch.setattr(batch_files, "_table", table)

    ends_at(2, ArtifactError("lists", "do not fit"))
    assert batch(shop, out, *WIDTH) == 2
    assert f"{out}.parts keeps what is answered" in capsys.readouterr().err
    ends_at(1, KeyboardInterrupt())
    assert batch(shop, out, *WIDTH) == 130
    assert "goes on behind 2 users of a run that ended" in capsys.readouterr().err
    assert out.read_text() == "of yesterday"
    monkeypatch.setattr(batch_files, "_table", tables)
    ended = shutil.copytree(f"{out}.parts", tmp_path / "ended")
    assert batch(shop, out, *WIDTH) == 0
    error = capsys.readouterr().err
    assert "goes on behind 3 users" in error and "1 user in " in error and "fewer" not in error
    check(rows_of(out), rows_of(whole))
    for other in (["--top-k", "9", *WIDTH], ["--beam-width", "31"], ["--exclude-history", *WIDTH]):
        shutil.copytree(ended, f"{out}.parts")
        assert batch(shop, out, *other) == 0
        assert "goes on" not in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == sorted([ended, out, whole])


def test_lists_of_a_ranker_are_not_gone_on_with_by_another(tiny_hstu: Path, tmp_path: Path) -> None:
    """A delta changes the ranker, and nothing in the artifact's own manifest."""
    artifact = Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))
    changed_further(artifact, 1)
    asked: dict[str, Any] = {"artifact": artifact, "top_k": 5, "url": None, "beam_width": 32}
    ranked, found = (
        partial(_key, Namespace(**asked, ensemble=name), {}, 2)
        for name in ("recommend_and_rank", "recommend")
    )
    before = ranked(), found()
    assert export_delta(artifact) is not None
    assert ranked() != before[0] and found() == before[1]


def test_a_run_goes_on_only_where_all_is_the_same(shop: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(shop, tmp_path / "artifact")

    def key(*more: str, wishes: dict[str, Any] | None = None, users: int = 4) -> str:
        asked = parser().parse_args(["batch", str(artifact), "--out", "lists.csv", *more])
        return _key(asked, wishes or {}, users)

    found = [
        key(),
        key(wishes={"exclude_history": True}),
        key(users=5),
        key("--top-k", "9"),
        key("--beam-width", "9"),
    ]
    found += [key("--ensemble", "recommend_draft"), key("--url", "a:1")]
    assert key() == found[0]
    switch(artifact, remove_items(artifact, Catalogue.load(artifact / CATALOGUE).item_ids[:1]))
    found.append(key())
    (artifact / NAME).write_text((artifact / NAME).read_text() + "\n")
    assert len({*found, key()}) == 9


def test_two_runs_do_not_write_one_file(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lists.csv"
    with batch_files.writing(out, load_keys(shop), "another's"):
        assert batch(shop, out, *WIDTH) == 2
        assert "another process makes its lists.csv now" in capsys.readouterr().err
        assert (tmp_path / "lists.csv.parts" / "key").read_text() == "another's"
    assert batch(shop, out, *WIDTH) == 0


def test_a_folder_of_somebody_else_stays(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "lists.csv.parts"
    parts.mkdir()
    (parts / "mine.txt").write_text("of weeks")
    assert batch(shop, tmp_path / "lists.csv", *WIDTH) == 2
    assert f"out: has {parts} beside it" in capsys.readouterr().err
    assert (parts / "mine.txt").read_text() == "of weeks"
    (parts / "mine.txt").unlink()
    assert batch(shop, tmp_path / "lists.csv", *WIDTH) == 0 and not parts.exists()


def test_what_cannot_be_is_refused_by_name(
    tiny: Path, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for artifact, out, more, said in (
        (shop, tmp_path / "lists.txt", [], "out: is .* ends in .parquet or .csv"),
        (shop, tmp_path, [], "out: is "),
        (shop, tmp_path / "none" / "lists.csv", [], "none.*No such file"),
        (shop, tmp_path / "lists.csv", ["--protocol", "http"], "protocol: is http without --url"),
        (shop, tmp_path / "lists.csv", ["--top-k", "33", *WIDTH], "top_k: is 33"),
        (shop, tmp_path / "lists.csv", ["--exclude", "x,y"], "exclude: "),
        (shop, tmp_path / "lists.csv", ["--ensemble", "recommend_and_rank"], "has no ranker"),
        (tiny, tmp_path / "lists.csv", [], "histories.parquet"),
    ):  # fmt: skip
        assert batch(artifact, out, *more) == 2
        error = capsys.readouterr().err
        assert re.search(said, error) and "Traceback" not in error, error
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_away_is_asked_again_until_patience_ends() -> None:
    errors = [Overloaded("full"), Unreachable("away")]

    def ask() -> str:
        if errors:
            raise errors.pop()
        return "answer"

    assert patiently(ask) == "answer"  # type: ignore[arg-type, comparison-overlap]
    errors += [Unreachable("away")]
    with pytest.raises(Unreachable, match="away"):
        patiently(ask, 0)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.serving
def test_a_server_that_starts_again_is_waited_for(tiny: Path, items: list[int]) -> None:
    ports = {"grpc_port": choose_ports().grpc, "beam_width": 32}
    with running_server(tiny, **ports) as server, Recommender(server.grpc_url) as recommender:
        ask = partial(recommender.recommend, items[:3])
        want = ask().item_ids.tolist()
    found: list[list[int]] = []
    with Recommender(server.grpc_url) as recommender:
        ask = partial(recommender.recommend, items[:3])
        thread = threading.Thread(target=lambda: found.append(patiently(ask).item_ids.tolist()))
        thread.start()
        with running_server(tiny, **ports):
            thread.join()
    assert found == [want]
