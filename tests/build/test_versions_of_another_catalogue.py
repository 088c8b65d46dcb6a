"""Versions of a catalogue that was: `genrec data` has made other semantic IDs since, and no server takes them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.catalogue import add_items
from build.validity import build_validity
from cli.main import main
from deploy.switch import switch
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from genrec.errors import ArtifactError, InputError
from tests.oracles.twin import twin_artifact

SIZES = (7, 6, 5)


def five_with(folder: Path, codes: str) -> Path:
    path = folder / f"{codes}.csv"
    path.write_text(f"item,title,code_1,code_2,code_3\n5,five,{codes}\n")
    return path


def test_they_bind_no_codes_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What came as a new item then comes again, under codes of now."""
    artifact = twin_artifact(tmp_path / "artifact", SIZES, 60)
    then, now = five_with(tmp_path, "0,1,2"), five_with(tmp_path, "1,2,3")
    add_items(artifact, then)
    was = Catalogue.load(artifact / CATALOGUE)
    Catalogue(was.item_ids, was.codes[::-1], was.titles, was.popularity, SIZES).save(artifact / CATALOGUE)
    build_validity(artifact)
    assert add_items(artifact, now, base=1) == 3
    with pytest.raises(InputError, match=r"codes \[0, 1, 2\] here and \[1, 2, 3\] in version 3"):
        add_items(artifact, then, base=1)
    assert main(["catalogue", "status", str(artifact)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("; refused, as of another catalogue.parquet") for line in lines] == [
        False,
        True,
        False,
    ]
    with pytest.raises(ArtifactError, match=r"`genrec catalogue swap .* 1` serves its own; .*--base 1 makes"):
        add_items(artifact, now, base=2)


def test_an_item_keeps_the_codes_that_the_current_version_has(tmp_path: Path) -> None:
    """Two versions that were made apart, each with an item that version 1 has not."""
    artifact = twin_artifact(tmp_path / "artifact", SIZES, 60)
    add_items(artifact, five_with(tmp_path, "0,1,2"))
    apart = folder_of(artifact, 2).rename(tmp_path / "apart")
    add_items(artifact, five_with(tmp_path, "1,2,3"))
    folder_of(artifact, 2).rename(folder_of(artifact, 3))
    apart.rename(folder_of(artifact, 2))
    switch(artifact, 2)
    with pytest.raises(
        ArtifactError, match=r"item 5 has the codes \[1, 2, 3\] here and \[0, 1, 2\] in version 2"
    ):
        switch(artifact, 3)
