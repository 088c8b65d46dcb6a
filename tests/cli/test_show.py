"""Users by id, or as their source spells them; titles only of the catalogue that a server serves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.catalogue import remove_items
from cli import catalogue, pool
from cli.main import main, parser
from cli.show import items_of, user_of
from deploy.launcher import RunningServer
from deploy.switch import switch
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from tests.cli.page import page_at
from tests.serving.servers import brief_server
from training.data.histories import Histories


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Ids 1 to 3, of which one is another's name."""
    items = np.arange(12)
    Histories(np.array([1, 2, 3]), items, np.array([0, 3, 7, 12])).save(
        tmp_path / "histories.parquet", ["alice", "Bob B.", "1"]
    )
    return tmp_path


@pytest.mark.parametrize(("user", "place"), [("1", 0), ("alice", 0), ("2", 1), ("Bob B.", 1), ("3", 2)])
def test_by_either(artifact: Path, user: str, place: int) -> None:
    found = user_of(artifact, user)
    assert found.user_ids.tolist() == [place + 1]
    assert found.items.tolist() == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]][place]


@pytest.mark.parametrize("user", ["bob", "4", "", "01", "-1", str(2**70)])
def test_a_stranger(artifact: Path, user: str) -> None:
    with pytest.raises(InputError, match=rf"user: {user} is not in the data .*one of 3 users, e\.g\. alice"):
        user_of(artifact, user)


def test_who_is_forgotten_may_be_named_by_either(artifact: Path) -> None:
    users = [parser().parse_args(["pool", "forget", "a", each]).user for each in ("alice", "2", "-7")]
    assert users == ["alice", 2, -7]  # whose id is given need not be in the data
    assert [pool.user_id_of(artifact, each) for each in users] == [1, 2, -7]
    with pytest.raises(InputError, match="user: bob is not in the data"):
        pool.user_id_of(artifact, "bob")


@pytest.mark.parametrize("name", ["007", "-0", "12345678901234567890", "١"])
def test_who_is_named_by_digits_is_forgotten_and_not_whose_id_they_would_be(
    tmp_path: Path, name: str
) -> None:
    histories = Histories(np.array([1, 2]), np.arange(6), np.array([0, 3, 6]))
    histories.save(tmp_path / "histories.parquet", ["alice", name])
    user = parser().parse_args(["pool", "forget", str(tmp_path), name]).user
    assert pool.user_id_of(tmp_path, user) == 2


def test_items_that_go_may_be_named_by_either(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"item_id": [1, 2, 3], "key": ["sku-1", "2", "sku,3"]}), tmp_path / "items.parquet"
    )
    assert catalogue.ids_of(tmp_path, "3,1").tolist() == [3, 1]
    assert catalogue.ids_of(tmp_path, "2,sku-1").tolist() == [2, 1]
    with pytest.raises(
        InputError, match=r"items: has 'sku-9', which is no key \(accepted: .* keys of items\.parq"
    ):
        catalogue.ids_of(tmp_path, "sku-1,sku-9")


@pytest.fixture(scope="module")
def served(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("served") / "artifact")


@pytest.fixture(scope="module")
def running(served: Path) -> Iterator[RunningServer]:
    with brief_server(served, beam_width=16, ensembles=("recommend", "rank")) as server:
        yield server


def asked(verb: str, artifact: Path, server: RunningServer, protocol: str, items: list[int]) -> list[str]:
    """Arguments of a question about items."""
    url = server.grpc_url if protocol == "grpc" else server.http_url
    given = ["--history", ",".join(map(str, items[:3])), "--top-k", "4"]
    given += ["--candidates", ",".join(map(str, items[9:19]))] if verb == "rank" else []
    return [verb, str(artifact), "--url", url, "--protocol", protocol, *given]


@pytest.mark.serving
@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("verb", ["recommend", "rank"])
def test_titles_are_of_the_catalogue_that_is_served(
    verb: str,
    protocol: str,
    served: Path,
    running: RunningServer,
    items: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalogue, file = Catalogue.load(served / "catalogue.parquet"), tmp_path / "catalogue.parquet"
    replace(catalogue, titles=[f"another {item}" for item in catalogue.item_ids]).save(file)
    assert main(asked(verb, served, running, protocol, items)) == 0
    titled = capsys.readouterr().out
    assert len(re.findall(r"  item (\d+)  \[\1\]$", titled, re.MULTILINE)) == 4
    assert main(asked(verb, tmp_path, running, protocol, items)) == 0
    bare = capsys.readouterr().out
    assert f"no titles: the server does not say that it serves the catalogue of {tmp_path}" in bare
    assert "another" not in bare and "item " not in bare
    ids = re.compile(r"\[(\d+)\]$", re.MULTILINE)
    assert ids.findall(bare) == ids.findall(titled)


@pytest.mark.serving
def test_a_page_of_another_catalogue_is_refused(running: RunningServer, tmp_path: Path) -> None:
    Catalogue(np.arange(3), np.zeros((3, 3), np.int32), ["a", "b", "c"], np.zeros(3, np.int64)).save(
        tmp_path / "catalogue.parquet"
    )
    said = "server: does not say that it serves the catalogue of"
    with pytest.raises(InputError, match=said), page_at(tmp_path, running.http_url):
        pass


@pytest.mark.serving
def test_a_version_that_is_not_here_has_no_titles(
    served: Path, running: RunningServer, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on another machine, where the artifact was copied before."""
    here = shutil.copytree(served, tmp_path / "here")
    switch(served, remove_items(served, np.array(items[-1:])))
    assert main(asked("recommend", here, running, "grpc", items)) == 0
    assert f"serves version 2 of the catalogue, which {here} lacks" in capsys.readouterr().out
    assert main(asked("recommend", served, running, "grpc", items)) == 0
    assert "  item " in capsys.readouterr().out


def test_a_narrow_beam_finds_as_many_as_it_has(
    served: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """And not the usual hundred, of which nobody spoke."""
    given = ["--history", ",".join(map(str, items[:3])), "--beam-width", "16", "--top-k", "4"]
    assert main(["rank", str(served), *given]) == 0
    assert len(re.findall(r"  item (\d+)  \[\1\]$", capsys.readouterr().out, re.MULTILINE)) == 4


@pytest.fixture(scope="module")
def named(tiny_ranker: Path, items: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose items the source names by text; one name is another item's number."""
    folder = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("named") / "artifact")
    keys = [f"sku-{item}" if item != items[0] else str(items[1]) for item in items]
    pq.write_table(pa.table({"item_id": items, "key": keys}), folder / "items.parquet")
    return folder


@pytest.mark.parametrize("verb", ["recommend", "rank"])
def test_items_that_are_asked_about_may_be_named_by_either(
    verb: str, named: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer has both."""

    def answer(history: str, candidates: str) -> str:
        more = ["--candidates", candidates] if verb == "rank" else ["--beam-width", "16"]
        assert main([verb, str(named), "--history", history, *more, "--top-k", "4"]) == 0
        return capsys.readouterr().out

    def listed(prefix: str, of: list[int]) -> str:
        return ",".join(f"{prefix}{item}" for item in of)

    by_key = answer(listed("sku-", items[2:5]), listed("sku-", items[9:19]))
    assert by_key == answer(listed("", items[2:5]), listed("", items[9:19]))
    assert len(re.findall(r"  item (\d+)  \[\1\]  sku-\1$", by_key, re.MULTILINE)) == 4


def test_an_item_that_is_served_no_more_is_named_with_the_version(
    named: Path, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = shutil.copytree(named, tmp_path / "artifact")
    switch(artifact, remove_items(artifact, np.array(items[2:3])))
    given = ["--history", f"sku-{items[2]},sku-{items[3]}", "--beam-width", "16"]
    assert main(["recommend", str(artifact), *given]) == 0
    said = capsys.readouterr().out
    assert f"last of 2: sku-{items[2]} (not in version 2); item {items[3]}" in said
    assert "1 item dropped, not in version 2" in said


def test_without_a_number_no_more_are_ranked_than_whoever_answers_finds(
    served: Path, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = shutil.copytree(served, tmp_path / "artifact", ignore=shutil.ignore_patterns("catalogues"))
    switch(artifact, remove_items(artifact, np.array(items[60:])))
    asked = ["rank", str(artifact), "--history", ",".join(map(str, items[:3])), "--top-k", "4"]
    for width in ("128", "16"):
        assert main([*asked, "--beam-width", width]) == 0
        assert len(re.findall(r"  item (\d+)  \[\1\]$", capsys.readouterr().out, re.MULTILINE)) == 4
    with brief_server(artifact, beam_width=16, ensembles=("recommend_and_rank",)) as server:
        url = ["--url", server.grpc_url]
        assert main([*asked, *url]) == 0
        assert len(re.findall(r"\[\d+\]$", capsys.readouterr().out, re.MULTILINE)) == 4
        assert main([*asked, *url, "--retrieve", "17"]) == 2
    said = "retrieve: is 17 (accepted: 1 to 16: the beam width is 16, the catalogue has 60 items"
    assert said in capsys.readouterr().err


def test_an_artifact_without_a_ranker_says_how_it_gets_one(
    tiny: Path, tiny_ranker: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for candidates in ([], ["--candidates", str(items[1])]):
        assert main(["rank", str(tiny), "--history", str(items[0]), *candidates]) == 2
        made = f"`genrec train {tiny} --ranker`, `genrec export {tiny}` and `genrec build {tiny}`"
        assert f"onnx: has no ranker; {made} make one" in capsys.readouterr().err
    assert main(["rank", str(tiny_ranker), "--history", str(items[0]), "--ranker", "none"]) == 2
    assert "ranker: is none, which ranks nothing (accepted: auto, discriminant)" in capsys.readouterr().err


def test_a_key_that_no_item_has_is_named(
    named: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rank", str(named), "--history", "sku-x", "--candidates", "1"]) == 2
    said = (
        "history: has 'sku-x', which is no key (accepted: ids alone as 1,2,3, or keys of items.parquet alone)"
    )
    assert said in capsys.readouterr().err
    assert items_of(named, "history", str(items[1])) == [items[1]]  # numbers alone are ids
    assert items_of(named, "history", f"{items[1]},sku-{items[2]}") == [items[0], items[2]]
    with pytest.raises(InputError, match=r"candidates: has 'sku-\\udcff', which is no key"):
        items_of(named, "candidates", f"sku-{items[2]},sku-\udcff")


def test_a_key_is_never_taken_for_another_item_s_number(tmp_path: Path) -> None:
    """Of a list and of a file; commas are in quotes, as in a CSV file."""
    keys = ["007", "salt, pepper", "Tee"]
    pq.write_table(pa.table({"item_id": [1, 2, 3], "key": keys}), tmp_path / "items.parquet")
    file = tmp_path / "gone.csv"
    for text, ids in (
        ("007", [1]), ('"salt, pepper", Tee', [2, 3]), ("3, 7", [3, 7]), ("3,1", [3, 1]),
    ):  # fmt: skip
        assert items_of(tmp_path, "history", text) == catalogue.ids_of(tmp_path, text).tolist() == ids
    for mixed, says in (("1,Tee", "'1', an id among keys"), ("1,Tea", "'Tea', which is no key")):
        for field, read in (
            ("history", partial(items_of, tmp_path, "history")),
            ("items", partial(catalogue.ids_of, tmp_path)),
        ):
            with pytest.raises(InputError, match=rf"{field}: has {says} \(accepted: ids alone.* alone\)$"):
                read(mixed)
    for rows, ids in ((["007"], [1]), (['"salt, pepper"', "Tee"], [2, 3]), (["3", "7"], [3, 7])):
        file.write_text("\n".join(["item", *rows]) + "\n")
        assert catalogue.ids_of(tmp_path, str(file)).tolist() == ids
    file.write_text("item\nKaffee\n")
    with pytest.raises(InputError, match=r"gone.csv, column item: has 'Kaffee', which is no key"):
        catalogue.ids_of(tmp_path, str(file))


def test_numbers_that_are_kept_as_ids_are_not_said_twice(
    tiny_ranker: Path, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    pq.write_table(pa.table({"item_id": items, "key": list(map(str, items))}), folder / "items.parquet")
    assert main(["recommend", str(folder), "--history", str(items[2]), "--beam-width", "16"]) == 0
    assert len(re.findall(r"  item (\d+)  \[\1\]$", capsys.readouterr().out, re.MULTILINE)) == 10
