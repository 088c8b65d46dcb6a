"""`genrec catalogue` tells of all versions, also of one that is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build.version import write_version
from cli.main import main
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.groups import Groups
from genrec.catalogue.versions import FOLDER, folder_of
from genrec.manifest import NAME
from tests.tiny import tiny_catalogue


@pytest.mark.parametrize("text", ["", "[]", '{"validity": {}}'])
def test_a_manifest_that_cannot_be_read_hides_no_other_version(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was done before, a swap say, would have seemed to fail."""
    catalogue = tiny_catalogue()
    catalogue.save(tmp_path / CATALOGUE)
    (tmp_path / FOLDER).mkdir()
    no_tokens, no_groups = np.zeros((len(catalogue), 0), np.int32), Groups((), (), len(catalogue))
    for _ in range(2):
        write_version(tmp_path, catalogue, no_tokens, no_groups, {"from": 1})
    damaged = folder_of(tmp_path, 2) / NAME
    damaged.write_text(text)
    assert main(["catalogue", "status", str(tmp_path)]) == 0
    _, second, third = capsys.readouterr().out.splitlines()
    assert second.startswith(f"  version 2: {damaged}: is not ")
    assert third == "  version 3: 300 items, from 1"
