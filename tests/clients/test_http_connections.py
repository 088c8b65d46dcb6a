"""HTTP connections that the server closes: who kept one asks once more, on a new one."""

from __future__ import annotations

from typing import Any

import pytest

from clients.errors import Unreachable
from clients.recommender import Recommender
from tests.web import Quiet, answering


@pytest.mark.parametrize("answers", [True, False])
def test_a_question_is_asked_again_only_where_a_kept_connection_was_closed(answers: bool) -> None:
    """On a new one the server may have begun with it."""
    asked: list[Any] = []

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.client_address)
            if answers:
                self.send_response(200)
                self.send_header("Content-Length", "12")
                self.end_headers()
                self.wfile.write(b'{"name":"x"}')
            self.close_connection = True  # and nothing said so

    with answering(Handler) as web, Recommender(f"127.0.0.1:{web.server_port}", "http") as recommender:
        if answers:
            assert [recommender.server_name() for _ in range(3)] == ["x"] * 3 and len(set(asked)) == 3
        else:
            with pytest.raises(Unreachable):
                recommender.server_name()
            assert len(asked) == 1
