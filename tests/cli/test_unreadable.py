"""Requests that nobody can read, and clients that go away: the page and the collector tell them in a line, or not."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from pathlib import Path

import pytest

from cli.collector import Collector
from tests.cli.page import NOBODY, page_at
from tests.serving.processes import until

HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
LONG = b"GET / HTTP/1.1\r\n" + HEAD + b"Cookie: " + b"a" * 9000 + b"\r\n\r\n"
PACKED = b"POST /api/recommend HTTP/1.1\r\n" + HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
NO_HEADER = b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n"
NEVER_READ = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset


@pytest.mark.parametrize("request_bytes", [LONG, PACKED, NO_HEADER], ids=["long", "packed", "no header"])
def test_the_page_refuses_in_one_line(
    shop: Path, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with page_at(shop, NOBODY) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30) as client:
            client.sendall(request_bytes)
            assert client.recv(4096).split()[1] == b"400"
        until(lambda: "a request is refused: 400" in caplog.text)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and not record.exc_info and "\n" not in record.getMessage()


def test_who_leaves_the_collector_unanswered_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    with Collector("http://127.0.0.1:0/v1/traces") as collector:
        before = threading.active_count()
        for body in (b"{}", b"{"):
            with socket.create_connection(
                ("127.0.0.1", int(collector.url.split(":")[2].split("/")[0]))
            ) as client:
                client.sendall(b"POST /v1/traces HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + body)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NEVER_READ)
        until(lambda: threading.active_count() == before)
    assert capsys.readouterr().err == ""
