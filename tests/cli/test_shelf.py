"""Titles of the page follow the catalogue that is served."""

from __future__ import annotations

import shutil
from pathlib import Path

from build.catalogue import add_items
from cli.web.shelf import Shelf
from genrec.catalogue.versions import point, read_current


def test_items_that_a_swap_brings_are_found(shop: Path, items: list[int], tmp_path: Path) -> None:
    artifact = shutil.copytree(shop, tmp_path / "artifact")
    shelf, new = Shelf(artifact), tmp_path / "new.csv"
    new.write_text(f"item,title,like\n{max(items) + 1},Brand new,{items[0]}\n")
    version = add_items(artifact, new)
    assert shelf.search("brand") == [], "it is not served yet"
    point(artifact, read_current(artifact).to(version))
    assert shelf.search("brand") == [{"id": str(max(items) + 1), "title": "Brand new"}]
    point(artifact, read_current(artifact).back())
    assert shelf.search("brand") == []
