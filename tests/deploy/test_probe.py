"""Probes of a server that does not answer as servers do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from deploy import probe

CUT_SHORT = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 500\r\n\r\nfailed"
NO_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Where one who asks is given these bytes, and nothing after them."""

    def say() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        said = pool.submit(say)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        said.result()


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
