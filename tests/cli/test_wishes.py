"""What may be answered: `genrec recommend`, locally and by a server alike, the page and `genrec trace` send it."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import urllib.error
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli import trace
from cli.main import main
from cli.options import groups
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from genrec.catalogue.keys import KEYS
from tests.cli.page import NOBODY, page_at
from tests.serving.servers import brief_server

IDS = re.compile(r"\[(\d+)\]$", re.MULTILINE)
WISHES = {
    "neither": ([], [], lambda known: known),
    "exclude": ([0, 1, 2, 3], [], lambda known: known[4:]),
    "only": ([], [5, 6, 7], lambda known: known[5:8]),
    "both": ([6], [5, 6, 7], lambda known: [known[5], known[7]]),
}


@pytest.mark.serving
@pytest.mark.parametrize("wish", WISHES)
def test_only_what_is_wished_is_answered(
    tiny: Path, server: RunningServer, items: list[int], wish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exclude, only, left = WISHES[wish]
    given = ["recommend", str(tiny), "--history", ",".join(map(str, items[:3])), "--top-k", "5"]
    for option, places in (("--exclude", exclude), ("--only", only)):
        if places:
            given += [option, ",".join(str(items[place]) for place in places)]
    answers = []
    for where in (["--beam-width", "32"], ["--url", server.grpc_url]):
        assert main([*given, *where]) == 0
        answers.append([int(item) for item in IDS.findall(capsys.readouterr().out)])
    assert answers[0] == answers[1]
    allowed = left(items)
    assert set(answers[0]) <= set(allowed) and len(answers[0]) == min(5, len(allowed))


def test_a_list_that_is_none_is_refused(
    tiny: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("exclude", "only"):
        assert main(["recommend", str(tiny), "--history", str(items[0]), f"--{option}", "x,y"]) == 2
        assert f"{option}: " in capsys.readouterr().err


def asked(url: str, **body: Any) -> Any:
    """What the page's server answers."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/recommend", data, kind)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.serving
def test_the_page_takes_ids_and_keys(
    traced: RunningServer, shop: Path, items: list[int], tmp_path: Path
) -> None:
    artifact = shutil.copytree(shop, tmp_path / "artifact")
    keys = [f"no. {item}" for item in items]
    pq.write_table(pa.table([items, keys], KEYS), artifact / "items.parquet")
    history = items[:3]
    with Recommender(traced.grpc_url) as recommender:
        wanted = recommender.recommend(history, 5, exclude=items[6:8], only=items[5:10])
    assert set(wanted.item_ids) == {items[5], *items[8:10]}
    with page_at(artifact, str(traced.run_dir / "server.json")) as url:
        for exclude, only in ((items[6:8], items[5:10]), (keys[6:8], keys[5:10])):
            lists = {"exclude": ",".join(map(str, exclude)), "only": ", ".join(map(str, only))}
            for told in asked(url, history=history, top_k=5, **lists):
                found = {int(item["id"]) for item in told["items"]}
                assert found == set(wanted.item_ids.tolist())


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *product(("exclude", "only"), ("x,y", [5], '"')),
        *product(("exclude_groups", "only_groups"), (5, ["sale"], True, "sale,", ",", '"sale')),
    ],
)
def test_the_page_names_the_field_of_a_list_that_is_none(shop: Path, field: str, given: Any) -> None:
    with page_at(shop, NOBODY) as url, pytest.raises(urllib.error.HTTPError) as refused:
        asked(url, history=[], **{field: given})
    error = json.load(refused.value)["error"]
    assert error["kind"] == "bad_input" and error["message"].startswith(f"{field}: ")


def test_names_of_groups_may_have_spaces_around_and_commas_in_quotes() -> None:
    assert groups(' sale,new in , "salt, pepper",7') == ["sale", "new in", "salt, pepper", "7"]
    for none in ("", " ", "sale,", ",sale", '"sale'):
        with pytest.raises(argparse.ArgumentTypeError, match="names with commas between"):
            groups(none)


@pytest.mark.serving
@pytest.mark.parametrize("ensemble", ["recommend", "recommend_draft"])
def test_a_traced_request_has_the_wishes(traced: RunningServer, items: list[int], ensemble: str) -> None:
    given = {"ensemble": ensemble, "candidates": None, "exclude": items[5:6], "only": items[5:8]}
    given |= {"exclude_groups": None, "only_groups": None}
    options = argparse.Namespace(history=items[:3], protocol="grpc", **given)
    with trace._asking(traced.grpc_url, options) as send:
        answer: Any = send(top_k=5)
    assert set(answer.item_ids) == set(items[6:8])


@pytest.mark.serving
def test_groups_by_name_everywhere(
    shop: Path, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, file = shutil.copytree(shop, tmp_path / "artifact"), tmp_path / "groups.csv"
    pairs = [(items[5], "sale"), (items[6], "sale"), (items[6], "7"), (items[7], "7")]
    pairs += [(items[8], '"salt, pepper"')]
    file.write_text("item,group\n" + "".join(f"{item},{name}\n" for item, name in pairs))
    assert main(["catalogue", "group", str(artifact), str(file)]) == 0
    assert main(["catalogue", "swap", str(artifact)]) == 0
    asked_for = {
        ("--only-groups", "sale"): {items[5], items[6]},
        ("--only-groups", "sale,7", "--exclude", str(items[6])): {items[5], items[7]},
        ("--only-groups", "sale", "--exclude-groups", "7"): {items[5]},
        ("--only-groups", "7", "--only", f"{items[5]},{items[7]}"): {items[7]},
        ("--only-groups", '7 , "salt, pepper"', "--exclude-groups", " sale"): {items[7], items[8]},
    }
    capsys.readouterr()
    with brief_server(artifact, beam_width=32, ensembles=("recommend",)) as server:
        for options, wanted in asked_for.items():
            for where in (["--beam-width", "32"], ["--url", server.grpc_url]):
                assert main(["recommend", str(artifact), "--history", str(items[0]), *options, *where]) == 0
                assert {int(item) for item in IDS.findall(capsys.readouterr().out)} == wanted
        lists = tmp_path / "lists.csv"
        given = ["--out", str(lists), "--url", server.grpc_url, "--only-groups", "sale"]
        assert main(["batch", str(artifact), *given]) == 0
        with lists.open() as rows:
            assert {int(row["item_id"]) for row in csv.DictReader(rows)} == {items[5], items[6]}
        options = argparse.Namespace(
            history=items[:3], protocol="grpc", ensemble="recommend", candidates=None, exclude=None, only=None,
            exclude_groups=("7",), only_groups=("sale",),
        )  # fmt: skip
        with trace._asking(server.grpc_url, options) as send:
            assert send(top_k=5).item_ids.tolist() == [items[5]]
        with page_at(artifact, str(server.run_dir / "server.json")) as url:
            with urllib.request.urlopen(f"{url}/api/about", timeout=60) as about:
                assert json.load(about)["groups"] == ["7", "sale", '"salt, pepper"']
            told, *_ = asked(url, history=[], only_groups="sale, 7", exclude_groups="7")
            assert [int(item["id"]) for item in told["items"]] == [items[5]]
            told, *_ = asked(url, history=[], only_groups="sale, sales")
            assert told["error"]["kind"] == "bad_input"
            assert "only_groups: names 'sales', which is no group" in told["error"]["message"]
        for where in (["--beam-width", "32"], ["--url", server.grpc_url]):
            for verb in (
                ["recommend", str(artifact), "--history", str(items[0])],
                ["batch", str(artifact), "--out", str(lists)],
            ):
                capsys.readouterr()
                assert main([*verb, "--exclude-groups", "sales", *where]) == 2
                assert "exclude_groups: names 'sales', which is no group" in capsys.readouterr().err
