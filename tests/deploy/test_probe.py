"""Probes of a server that is busy, or does not answer as servers do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy import probe
from deploy.check import main as check
from deploy.ports import choose_ports
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.catalogue.agreement import Acknowledgement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.versions import FOLDER, POINTER, folder_of
from genrec.errors import ArtifactError

CUT_SHORT = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 500\r\n\r\nfailed"
NO_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@contextmanager
def answering(answer: bytes, asked: list[bytes] | None = None) -> Iterator[str]:
    """Where one who asks is given these bytes, and nothing after them. What he said is added to `asked`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = self.rfile.read(int(self.headers["content-length"]))  # or hanging up would be a reset
            (asked if asked is not None else []).append(said)
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http, ThreadPoolExecutor(1) as pool:
        pool.submit(http.handle_request)
        yield f"127.0.0.1:{http.server_port}"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(CUT_SHORT, "500: cut short: IncompleteRead"), (NO_ANSWER, "TypeError")],
    ids=["cut short", "a list"],
)
def test_whatever_is_answered_a_probe_says_what_is_wrong(answer: bytes, problem: str) -> None:
    with answering(answer) as url:
        assert probe.infer_all(url, ["recommend"], 1, 30)["recommend"].startswith(problem)


def test_a_model_that_cannot_be_loaded_is_told_though_the_answer_is_cut_short() -> None:
    with answering(CUT_SHORT) as url:
        assert probe.load_model(url, "decode", {}, 30).startswith("cut short: IncompleteRead")


@pytest.mark.parametrize("ensemble", ["recommend", "rank", "recommend_and_rank", "pre_infer"])
def test_a_probe_is_due_before_nobody_listens(ensemble: str) -> None:
    """So a server under load refuses it in time, which shows that it lives."""
    refusal = f'{{"error": "in ensemble \'{ensemble}\', deadline_ms: too late"}}'.encode()
    said: list[bytes] = []
    with answering(b"HTTP/1.1 503 Busy\r\n\r\n" + refusal, said) as url:
        assert probe.infer(url, ensemble, 7, 5.0).alive
    (due,) = [each["data"] for each in json.loads(said[0])["inputs"] if each["name"] == "deadline_ms"]
    assert 0 < due[0] < 5000


def test_a_probe_has_an_item_as_long_as_a_version_that_is_served_has_one(tmp_path: Path) -> None:
    """Where the current one cannot be read, servers go on with those before."""
    pointer = tmp_path / FOLDER / POINTER
    for version, item in ((2, 7), (3, 8), (4, 9)):
        folder_of(tmp_path, version).mkdir(parents=True)
        pq.write_table(pa.table({"item_id": [item, 1]}), folder_of(tmp_path, version) / CATALOGUE)
    pointer.write_text(json.dumps({"version": 4, "serial": 5, "before": [2, 3], "highest": 4}))
    assert probe.known_item(tmp_path) == 9
    (folder_of(tmp_path, 4) / CATALOGUE).unlink()
    assert probe.known_item(tmp_path) == 8
    pq.write_table(pa.table({"item_id": pa.array([], pa.int64())}), folder_of(tmp_path, 3) / CATALOGUE)
    assert probe.known_item(tmp_path) == 7
    (folder_of(tmp_path, 2) / CATALOGUE).write_bytes(b"no")
    with pytest.raises(ArtifactError, match=r"catalogues/4/catalogue\.parquet: no item to probe with"):
        probe.known_item(tmp_path)


def test_a_probe_has_an_item_of_the_version_that_a_server_gives_to_requests(tmp_path: Path) -> None:
    """Not of one that is pointed to and refused, or still loaded: of a `rank` with an item that it does not know a
    server says only what is wrong with it, and would be started again for that.
    """
    for version, item in ((2, 7), (3, 8)):
        folder_of(tmp_path, version).mkdir(parents=True)
        pq.write_table(pa.table({"item_id": [item]}), folder_of(tmp_path, version) / CATALOGUE)
    (tmp_path / FOLDER / POINTER).write_text(
        json.dumps({"version": 3, "serial": 5, "before": [], "highest": 3})
    )
    swap = tmp_path / "swap"
    assert probe.known_item(tmp_path, swap) == 8, "no server says anything"
    agreement.create(swap, tmp_path, 2)
    assert probe.known_item(tmp_path, swap) == 7
    agreement.acknowledge(swap, "encode_history-1", Acknowledgement(5, (2, 3), 2))
    assert probe.known_item(tmp_path, swap) == 7
    agreement.acknowledge(swap, "encode_history-1", Acknowledgement(5, (2, 3), 3))
    assert probe.known_item(tmp_path, swap) == 8


def test_a_check_asks_with_an_item_of_what_the_server_beside_it_serves(tmp_path: Path) -> None:
    for folder, item in ((tmp_path, 7), (folder_of(tmp_path, 2), 8)):
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"item_id": [item]}), folder / CATALOGUE)
    (tmp_path / FOLDER / POINTER).write_text(
        json.dumps({"version": 2, "serial": 1, "before": [], "highest": 2})
    )
    prefix, said = leftovers.own_prefix(), list[bytes]()
    try:
        agreement.create(leftovers.SHM / f"{prefix}{leftovers.SWAP}", tmp_path, 1)
        with answering(NO_ANSWER, said) as url:
            check([str(tmp_path), url, "recommend"])
    finally:
        leftovers.remove(prefix)
    assert json.loads(said[0])["inputs"][0]["data"] == [7]


@pytest.mark.parametrize("argv", [[], ["artifact"], ["artifact", "127.0.0.1:1"]], ids=len)
def test_a_check_that_asks_nobody_says_what_it_takes(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(argv) == 1
    assert "(accepted: an artifact, host:port of HTTP, and the ensembles to ask)" in capsys.readouterr().err


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not reach the server, and be told the secret that controls it."""
    nobody = choose_ports()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setattr("urllib.request._opener", None)  # which knows the environment of its making
        assert "refused" in probe.load_model(nobody.http_url, "decode", {"genrec-control": "secret"}, 1.0)
        assert "refused" in probe.infer(nobody.http_url, "recommend", 7, 1.0).problem
        assert not probe.server_id(nobody.http_url, 1.0)
        assert probe.answered(nobody.metrics_url, 1.0) is None
        with pytest.raises(BlockingIOError):
            proxy.accept()
