"""What tests of catalogue versions start from."""

from __future__ import annotations

import shutil
from pathlib import Path

from build.catalogue import remove_items
from genrec.catalogue import agreement
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import CATALOGUE
from genrec.settings import Settings


def with_versions(artifact: Path) -> Path:
    """The artifact with versions 2 and 3 of its catalogue, each without one item."""
    items = Catalogue.load(artifact / CATALOGUE).item_ids
    for n in (0, 1):
        remove_items(artifact, items[n : n + 1])
    return artifact


def settings_of_a_server(plain: Path, folder: Path) -> Settings:
    """A copy of the artifact, and the swap folder of a server that starts with version 1."""
    artifact = shutil.copytree(plain, folder / "artifact")
    agreement.create(folder / "swap", artifact, 1)
    return Settings(artifact, folder / "no-arena", swap=folder / "swap")
