"""Settings that nothing would read are refused before a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import unread
from genrec.errors import InputError
from genrec.rank.head import FILE_NAME
from genrec.settings import Settings


def test_nodes_without_the_library_of_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server alone would go on and on without the store, and tell of it in its log alone."""
    (head := tmp_path / "onnx" / FILE_NAME).parent.mkdir()
    head.touch()
    two = Settings(tmp_path, tmp_path, nodes=2, store="127.0.0.1:1", store_host="127.0.0.1:2")
    monkeypatch.setattr(unread, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"nodes: is 2, and mooncake is not installed .*'\.\[mooncake\]'"):
        unread.check_read(two, tmp_path, ["rank"])
    monkeypatch.setattr(unread, "find_spec", lambda name: name)
    unread.check_read(two, tmp_path, ["rank"])
