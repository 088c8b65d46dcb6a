"""What `genrec rollout` says of a router that does not answer to the end."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.main import main
from deploy import leftovers
from deploy.router.fleet import STATE
from deploy.router.haproxy import FOLDER
from deploy.router.route import CONTROL, RolloutFailed, rollout

SERVED = Path("/served")


@pytest.mark.parametrize(
    ("last", "says"),
    [(b"", "/served: its router has ended"), (b'{"error": "new: is damaged"}\n', "new: is damaged")],
)
def test_a_rollout_that_fails_says_why(last: bytes, says: str) -> None:
    prefix, told = leftovers.own_prefix(), []
    folder = leftovers.SHM / f"{prefix}{FOLDER}"
    folder.mkdir(mode=0o700)
    (folder / STATE).write_text(json.dumps({"serving": str(SERVED)}))

    def answer() -> str:
        """As a router that ends after `last`."""
        connection, _ = listening.accept()
        with connection, connection.makefile("r") as lines:
            asked = lines.readline()
            connection.sendall(b'{"told": "starting"}\n' + last)
        return asked

    try:
        with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor() as pool:
            listening.bind(str(folder / CONTROL))
            listening.listen()
            answered = pool.submit(answer)
            with pytest.raises(RolloutFailed, match=says):
                rollout(SERVED, Path("/new"), 100, told.append)
            assert json.loads(answered.result()) == {"new": "/new", "share": 100}
    finally:
        leftovers.remove(prefix)
    assert told == ["starting"]


def test_several_nodes_are_not_put_behind_one_router(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All its servers would be the same node."""
    options = ["--nodes", "2", "--store", "127.0.0.1:1", "--store-host", "127.0.0.1:2"]
    assert main(["route", str(tiny), *options]) == 2
    assert "nodes: is 2 behind one router (accepted: 1: its servers" in capsys.readouterr().err
