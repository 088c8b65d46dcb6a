"""A version that was served and taken back: the next one does not bring it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.catalogue import remove_items
from cli.main import main
from deploy.switch import roll_back, switch
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from tests.oracles.twin import twin_artifact


def items_of(artifact: Path, version: int) -> list[int]:
    return Catalogue.load(folder_of(artifact, version) / CATALOGUE).item_ids.tolist()


def test_the_next_is_made_of_the_one_that_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = twin_artifact(tmp_path / "artifact", (7, 6, 5), 60)
    catalogue = Catalogue.load(artifact / CATALOGUE)
    first = catalogue.item_ids.tolist()
    remove_items(artifact, catalogue.item_ids[9:])
    switch(artifact, 2)
    roll_back(artifact)
    assert main(["catalogue", "remove", str(artifact), str(first[0])]) == 0
    assert "version 3 made of version 1; " in capsys.readouterr().out
    assert items_of(artifact, 3) == first[1:]
    remove_items(artifact, catalogue.item_ids[1:2])
    assert items_of(artifact, 4) == first[2:], "what waits to be served is built upon"
    assert main(["catalogue", "remove", str(artifact), str(first[8]), "--base", "2"]) == 0
    assert "version 5 made of version 2; " in capsys.readouterr().out
    assert items_of(artifact, 5) == first[:8]
