"""The page's server: what it answers to its script, what it refuses, and that `genrec web` starts and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import main
from cli.web.app import HEADERS
from cli.web.asking import asked_of, error_as_json
from cli.web.live import figures, read
from cli.web.shelf import FOUND, Shelf
from clients.errors import BadRequest, Overloaded, ServerError, TimedOut, Unreachable
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from tests.cli.page import NOBODY, page_at

# `genrec web` without a server; it is told to end once it listens, and says who takes signals while it cleans.
ENDED = """
import argparse, os, signal, threading
from contextlib import contextmanager
from pathlib import Path
from cli.web import serve
from cli.web.app import Page
from deploy.ports import choose_ports

@contextmanager
def page_of(*_):
    try:
        yield Page("mine", "127.0.0.1:1", "", (), None, None)
    finally:
        print(*(signal.getsignal(number).name for number in (signal.SIGINT, signal.SIGTERM)))

run_app, serve.page_of = serve.web.run_app, page_of
serve.web.run_app = lambda *app, **how: run_app(
    *app, **how | {"print": lambda *_: os.kill(os.getpid(), signal.SIGTERM)}
)
serve.run(argparse.Namespace(artifact=Path("mine"), server=None, beam_width=1, port=choose_ports().http))
"""


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, given), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def page(traced: RunningServer, shop: Path) -> Iterator[str]:
    with page_at(shop, str(traced.run_dir / "server.json")) as url:
        yield url


@pytest.mark.serving
def test_it_answers_what_the_server_answers(page: str, traced: RunningServer, items: list[int]) -> None:
    status, (beam, draft) = ask(
        f"{page}/api/recommend", {"history": items[:5], "top_k": 7, "exclude_history": True}
    )
    assert status == 200
    for told, ensemble in ((beam, "recommend"), (draft, "recommend_draft")):
        with Recommender(traced.grpc_url, model=ensemble) as recommender:
            answer = recommender.recommend(items[:5], 7, exclude_history=True)
        assert [int(item["id"]) for item in told["items"]] == answer.item_ids.tolist()
        assert [item["title"] for item in told["items"]] == [f"item {item}" for item in answer.item_ids]
        assert [item["score"] for item in told["items"]] == pytest.approx(answer.scores.tolist())
        status, way = ask(f"{page}/api/way?trace={told['trace']}")
        assert status == 200 and way["parts"][1]["parts"][0]["name"] == ensemble
        assert ask(f"{page}/api/way?trace={told['trace']}")[0] == 400  # once


@pytest.mark.serving
def test_a_refusal_is_told_per_decoder(page: str, items: list[int]) -> None:
    status, told = ask(f"{page}/api/recommend", {"history": items[:5], "top_k": 1000})
    assert status == 200
    assert {each["error"]["kind"] for each in told} == {"bad_input"}
    assert told[0]["error"]["message"].startswith("top_k: is 1000 (accepted: 1 to 32")
    _, told = ask(f"{page}/api/recommend", {"history": ["x"], "top_k": 3})
    assert told[0]["error"]["kind"] == "bad_input" and told[0]["error"]["message"].startswith("history: ")


@pytest.mark.serving
def test_live_figures_are_tritons(page: str, items: list[int]) -> None:
    _, before = ask(f"{page}/api/live")
    for _ in range(3):
        ask(f"{page}/api/recommend", {"history": items[:3]})
    _, after = ask(f"{page}/api/live")
    assert after["answered"] >= before["answered"] + 3 and after["seconds"] > before["seconds"]
    assert after["p99_ms"] >= after["p50_ms"] > 0
    assert set(after["outcomes"]) >= {"answered", "deadline", "queue"}


def test_a_server_away_is_an_answer(shop: Path, items: list[int]) -> None:
    with page_at(shop, NOBODY) as url:
        status, told = ask(f"{url}/api/recommend", {"history": items[:3]})
        assert status == 200 and [each["error"]["kind"] for each in told] == ["away", "away"]
        assert told[0]["trace"] is None
        assert ask(f"{url}/api/live")[0] == 400
        assert ask(f"{url}/api/about")[1] == {
            "name": shop.name, "items": 300, "users": 4, "titles": True, "groups": [], "metrics": False,
            "traced": False,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "said"),
    (
        ("/", None, {"Host": "evil.example"}, 403, "127.0.0.1"),
        ("/", None, {"Host": "127.0.0.1:99999"}, 403, "127.0.0.1"),
        ("/api/recommend", b"{}", {"Content-Type": "text/plain"}, 400, "request: is text/plain (accepted: appl"),
        ("/api/recommend", b"{", {}, 400, "request: is no JSON"),
        ("/api/recommend", b"[" * 100_000, {}, 400, "request: is no JSON: maximum recursion depth"),
        ("/api/recommend", b"{}", {"Content-Type": "application/json; charset=x"}, 400, "unknown encoding: x"),
        ("/api/recommend", b"{}", {"Content-Encoding": "gzip"}, 400, "request: is no JSON: 400"),
        ("/api/recommend", [], {}, 400, "request: is no object with a list `history`"),
        ("/api/recommend", b" " * (3 << 20), {}, 413, ""),
        ("/api/user?id=x", None, {}, 400, "user: x is not in the data (accepted: one of 4 users, as a)"),
        ("/api/user?id=--5", None, {}, 400, "user: --5 is not in the data (accepted: one of 4 users, as a)"),
        (f"/api/user?id={-(1 << 63)}", None, {}, 400, f"user: {-(1 << 63)} is not in the data"),
        ("/api/user?id=5", None, {}, 400, "user: 5 is not in the data (accepted: one of 4 users, as a)"),
        ("/api/titles?typed=" + "a" * 200, None, {}, 400, "title: has 200 characters (accepted: at most 100)"),
        ("/api/titles?typed=" + "a" * 8172, None, {}, 400, "title: has 8172 characters"),
        ("/api/titles?typed=" + "a" * 8173, None, {}, 414, "the URL has 8191 characters, more than 8190"),
        ("/" + "a" * (1 << 20), None, {}, 414, "the URL has 1048577 characters"),
        ("/api/way?trace=1", None, {}, 400, "trace: is none of this page's"),
        ("/../serve.py", None, {}, 404, ""),
    ),
)  # fmt: skip
def test_what_is_refused(
    away: str, path: str, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    found, told = ask(away + path, body, **headers)
    assert found == status
    assert said in (told if isinstance(told, str) else told["error"]["message"])


@pytest.fixture(scope="module")
def away(shop: Path) -> Iterator[str]:
    with page_at(shop, NOBODY) as url:
        yield url


def test_every_answer_keeps_to_itself(away: str) -> None:
    for path in ("/", "/page.js", "/api/about", "/api/user?id=x"):
        try:
            with urllib.request.urlopen(away + path, timeout=60) as response:
                headers = response.headers
        except urllib.error.HTTPError as error:
            headers = error.headers
        assert {name: headers[name] for name in HEADERS} == HEADERS


def test_titles_are_found_as_a_slow_search_finds_them(shop: Path) -> None:
    shelf, catalogue = Shelf(shop), Catalogue.load(shop / "catalogue.parquet")
    for typed in ("item 1", "ITEM 20", "7", "m 2", "nothing has this", "(", " item 3 "):
        wanted = typed.strip().lower()
        rows = [row for row, title in enumerate(catalogue.titles) if wanted in title.lower()]
        rows.sort(
            key=lambda row: (
                not catalogue.titles[row].lower().startswith(wanted),
                -catalogue.popularity[row],
                row,
            )
        )
        assert [int(found["id"]) for found in shelf.search(typed)] == catalogue.item_ids[rows][
            :FOUND
        ].tolist()
    assert shelf.search("  ") == []


def test_an_item_without_title_is_found_by_its_id(shop: Path, tmp_path: Path) -> None:
    catalogue = Catalogue.load(shop / "catalogue.parquet")
    bare = Catalogue(catalogue.item_ids, catalogue.codes, [""] * len(catalogue), catalogue.popularity)
    bare.save(tmp_path / "catalogue.parquet")
    shelf, item = Shelf(tmp_path), int(catalogue.item_ids[5])
    assert not shelf.has_titles and shelf.users == 0
    assert shelf.search(str(item)) == [{"id": str(item), "title": ""}]
    assert shelf.search("-1") == shelf.search("9" * 19) == shelf.search("9" * 30) == []
    with pytest.raises(InputError, match="user: cannot be picked"):
        shelf.user("1")


def test_a_user_has_his_history(shop: Path, items: list[int]) -> None:
    shelf = Shelf(shop)
    assert [int(item["id"]) for item in shelf.user("20")["history"]] == items[4:9]
    assert {shelf.user("")["user"] for _ in range(100)} <= {"10", "20", "30", "40"}


def test_ids_that_a_browser_would_round_arrive_as_they_are(shop: Path, tmp_path: Path) -> None:
    """JSON numbers beyond 2^53 are others in a browser."""
    catalogue, large = Catalogue.load(shop / "catalogue.parquet"), 2**53 + 1
    ids = np.arange(large, large + len(catalogue))
    Catalogue(ids, catalogue.codes, [""] * len(catalogue), catalogue.popularity).save(
        tmp_path / "catalogue.parquet"
    )
    (found,) = Shelf(tmp_path).search(str(large))
    assert found["id"] == "9007199254740993"
    assert asked_of({"history": [found["id"], "x", 7], "top_k": 3}) == {
        "history": [large, "x", 7],
        "top_k": 3,
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    (
        (InputError("top_k", "is 0", "1"), "bad_input"), (BadRequest("top_k: is 0 (accepted: 1)"), "bad_input"),
        (Overloaded("deadline_ms: 1.0 ms are left and 9.0 ms are needed"), "deadline"),
        (Overloaded("queue: has 1024 requests"), "overloaded"), (Unreachable("x"), "away"),
        (TimedOut("x"), "timeout"), (ServerError("x"), "failed"),
    ),
)  # fmt: skip
def test_errors_by_what_a_person_can_do(error: Exception, kind: str) -> None:
    assert error_as_json(error) == {"kind": kind, "message": str(error)}


def test_figures_of_a_scrape() -> None:
    text = (
        'nv_inference_request_success{model="recommend",version="1"} 12\n'
        'nv_inference_request_success{model="generate",version="1"} 99\n'
        'nv_inference_request_summary_us{model="recommend",version="1",quantile="0.5"} 2500\n'
        'nv_inference_request_summary_us{model="recommend",version="1",quantile="0.99"} Nan\n'
        'genrec_requests_total{model="a",outcome="queue"} 2\ngenrec_requests_total{model="b",outcome="queue"} 3\n'
    )
    assert figures(read(text)) == {"answered": 12, "p50_ms": 2.5, "p99_ms": None, "outcomes": {"queue": 5}}


@pytest.mark.parametrize(
    ("given", "said"),
    (
        (["--port", "0"], "port: is 0 (accepted: 1 to 65535)"),
        (
            ["--server", "nobody"],
            "server: is 'nobody' (accepted: the server.json of a run folder, or host:port",
        ),
        (["--server", "none/server.json"], "none/server.json: does not describe a server"),
        (["--server", NOBODY, "--beam-width", "8"], "beam-width: is given with --server (accepted: nothing"),
    ),
)
def test_bad_arguments_get_one_line(
    shop: Path, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = ["--port", str(choose_ports().http)]
    assert main(["web", str(shop), *port, *given]) == 2
    assert said in capsys.readouterr().err


def test_a_taken_port_gets_one_line(away: str, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = away.rpartition(":")[2]
    assert main(["web", str(shop), "--port", port, "--server", NOBODY]) == 2
    assert (
        capsys.readouterr().err
        == f"genrec web: port: {port} is in use on 127.0.0.1 (accepted: a free port, by --port)\n"
    )


@pytest.mark.serving
def test_the_command_starts_a_server_and_ends_it(tiny: Path, items: list[int]) -> None:
    port = choose_ports().http
    command = [sys.executable, "-m", "genrec", "web", str(tiny), "--port", str(port), "--beam-width", "8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and f"try it: http://127.0.0.1:{port}" in process.stdout.readline()
        _, (beam, _) = ask(f"http://127.0.0.1:{port}/api/recommend", {"history": items[:3], "top_k": 8})
        assert len(beam["items"]) == 8 and beam["trace"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert np.isfinite([item["score"] for item in beam["items"]]).all()


def test_a_second_signal_does_not_cut_the_cleaning_short() -> None:
    said = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=True)
    assert said.stdout == "SIG_IGN SIG_IGN\n"
