"""The server's log does not fill the disk, whatever is logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc

from deploy import server_log
from deploy.launcher import RunningServer
from tests.serving.processes import until
from tests.serving.wire import ask, tensors


def test_a_long_log_begins_anew_and_its_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, before = tmp_path / "server.log", tmp_path / "server.log.1"
    monkeypatch.setattr(server_log, "MOST", 100)
    with log.open("ab") as server:
        server.write(b"a" * 100)
        server.flush()
        assert not server_log.rotate(log)
        server.write(b"b" * 100)
        server.flush()
        assert server_log.rotate(log)
        assert (log.read_bytes(), before.read_bytes()) == (b"", b"b" * 50)
        server.write(b"c" * 150)  # the server goes on with the file it has
        server.flush()
        assert server_log.rotate(log)
    assert (log.stat().st_size, before.read_bytes()) == (0, b"c" * 50)


def test_what_is_written_meanwhile_and_what_a_kill_leaves_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, before = tmp_path / "server.log", tmp_path / "server.log.1"
    monkeypatch.setattr(server_log, "MOST", 100)
    keep = server_log._keep

    def meanwhile(*given: Any) -> bool:
        with log.open("ab") as server:
            server.write(b"last words")
        return keep(*given)

    log.write_bytes(b"a" * 150)
    monkeypatch.setattr(server_log, "_keep", meanwhile)
    monkeypatch.setattr(server_log.os, "truncate", _killed)
    with pytest.raises(KeyboardInterrupt):
        server_log.rotate(log)
    assert log.read_bytes() == b"a" * 150 + b"last words" and before.read_bytes() == b"a" * 50
    monkeypatch.undo()
    monkeypatch.setattr(server_log, "MOST", 100)
    monkeypatch.setattr(server_log, "_keep", meanwhile)
    assert server_log.rotate(log)
    assert before.read_bytes() == b"a" * 40 + b"last words" * 2


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_a_running_servers_log_is_bound(
    server: RunningServer, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = server.run_dir / "server.log"
    assert log.stat().st_size > 1000
    monkeypatch.setattr(server_log, "MOST", 1000)
    until(lambda: log.stat().st_size <= 1000)
    assert ask(tritonclient.grpc, server.grpc_url, tensors(items[:3]))["item_ids"].size
