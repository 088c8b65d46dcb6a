"""What nobody can look at, in a folder that is closed to this user say, is not taken for what is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genrec import manifest
from genrec.catalogue.versions import FOLDER, Current, read_current
from genrec.errors import ArtifactError


@pytest.mark.parametrize(("read", "folder"), [(read_current, FOLDER), (manifest.read, ".")])
def test_it_is_an_error_with_its_name(tmp_path: Path, read: Callable[[Path], Any], folder: str) -> None:
    """Servers would go back to version 1 in silence. A link to itself stands for the folder: root may look anywhere."""
    artifact = tmp_path / "artifact"
    closed = artifact / folder
    closed.parent.mkdir(exist_ok=True)
    closed.symlink_to(closed)
    with pytest.raises(ArtifactError, match=rf"^{closed}/\w+\.json: cannot be read: "):
        read(artifact)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert (read_current(tmp_path), manifest.read(tmp_path)) == (Current(), {})
    (tmp_path / FOLDER).write_text("")  # a file, in which nothing can lie
    assert read_current(tmp_path) == Current()
