"""A server that hangs is found out by one deadline for all its ensembles, not one after the other."""

from __future__ import annotations

import json
import threading

from deploy import probe
from tests.web import Quiet, answering

ENSEMBLES = ("recommend", "recommend_staged", "recommend_draft")


def test_ensembles_are_asked_at_once() -> None:
    """A server that answers nobody before all three have asked."""
    together = threading.Barrier(len(ENSEMBLES))

    class Answer(Quiet):
        def do_POST(self) -> None:
            together.wait(30)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"outputs": [{"name": "item_ids"}, {"name": "report"}]}).encode())

    with answering(Answer) as server:
        assert probe.infer_all(f"127.0.0.1:{server.server_port}", ENSEMBLES, 1, timeout_s=20) == {}
