"""What tests of catalogue versions start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from build.catalogue import remove_items
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.settings import Settings
from genrec.steps.versioned import Versioned
from tests.oracles.twin import twin_artifact


def three_versions(folder: Path) -> Path:
    """A small artifact of three versions."""
    return with_versions(twin_artifact(folder / "artifact", (7, 6, 5), 60))


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


@contextmanager
def processes(settings: Settings) -> Iterator[Callable[..., Versioned[str]]]:
    """Makes what stands for a process of a server, by its name; by default it remembers the folder's name."""
    made: list[Versioned[str]] = []

    def make(name: str, load: Callable[[Path], str] = lambda folder: folder.name) -> Versioned[str]:
        made.append(Versioned(settings, name, load))
        return made[-1]

    yield make
    for one in made:
        one.close()
