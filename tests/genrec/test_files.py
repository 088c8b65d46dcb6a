"""Files that are replaced as wholes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from genrec.files import write_whole


def test_what_fails_to_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "about.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new" * 10_000 + "\ud800")
    assert path.read_text() == "old"
    write_whole(path, "new")  # whatever is left of the one that failed
    assert path.read_text() == "new" and os.listdir(tmp_path) == [path.name]


def test_nobody_else_reads_it_and_nobody_else_says_where_it_goes(tmp_path: Path) -> None:
    path, other = tmp_path / "about.json", tmp_path / "other"
    other.write_text("mine")
    path.with_name("about.json.partial").symlink_to(other)
    write_whole(path, "secret", 0o600)
    assert (other.read_text(), path.read_text(), path.is_symlink()) == ("mine", "secret", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
