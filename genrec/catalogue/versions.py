"""The versions of an artifact's catalogue: which exist, and which one is current (`soundness`: is one sound).

Version 1 is the artifact's own catalogue. Later ones lie in `catalogues/<version>/`: the same three files, the tokens
of items where the artifact has such a table, groups of items where there are any, and a manifest of their own.
`catalogues/current.json` points to the version that running servers follow and later ones start with; it is replaced as
a whole. The codes of an item are the same in every version that has it, so what was computed for a prompt holds in all
of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from genrec import manifest
from genrec.catalogue.files import CATALOGUE, GROUPS, ITEM_TOKENS, VALID_IDS, VALIDITY
from genrec.errors import ArtifactError, InputError
from genrec.files import is_absent, locked_folder, read_json, write_whole
from genrec.words import command

BASE = 1
FOLDER, POINTER = "catalogues", "current.json"
INDEXED, MADE, TOKENS, GROUPED = (
    "validity",
    "version",
    "item_tokens",
    "groups",
)  # stages of a version's manifest
OTHER_VERSION = "; `genrec catalogue add`, `remove` or `group` with --base 1 makes another version"
REMEMBERED = 100  # switches that can be taken back
ID_DIGITS = 16
log = logging.getLogger("genrec.catalogue")


class Current(NamedTuple):
    """What the pointer says. `serial` counts its changes; `before` are the versions to roll back to, newest last;
    `highest` is the highest that was ever current: a server may have it loaded, so its number is not given again.
    """

    version: int = BASE
    serial: int = 0
    before: tuple[int, ...] = ()
    highest: int = BASE

    @property
    def newest_first(self) -> tuple[int, ...]:
        """The current version, then those to roll back to."""
        return (self.version, *reversed(self.before))

    def to(self, version: int) -> Current:
        """After a switch; to the version that is current already it only counts."""
        before = self.before if version == self.version else (*self.before, self.version)
        return Current(version, self.serial + 1, before[-REMEMBERED:], max(version, self.highest))

    def back(self) -> Current:
        """After the last switch is taken back. Raises InputError when there was none."""
        if not self.before:
            raise InputError(
                "rollback", f"nothing came before version {self.version}", "a switch to take back"
            )
        return Current(self.before[-1], self.serial + 1, self.before[:-1], self.highest)


def catalogue_id(artifact: Path, digest: Callable[[Path], str] = manifest.digest_file) -> str:
    """Which catalogue an artifact has, and versions that were made beside it. `digest` is a sha256. ArtifactError."""
    return digest(artifact / CATALOGUE)[:ID_DIGITS]


def served_id(artifact: Path, digest: Callable[[Path], str] = manifest.digest_file) -> str:
    """What a server's name ends with: which artifact, by its manifest, and `catalogue_id`. Raises ArtifactError."""
    made = manifest.digest_file(artifact / manifest.NAME)
    return f"{made[:ID_DIGITS]}-{catalogue_id(artifact, digest)}"


def folder_of(artifact: Path, version: int) -> Path:
    """Where the files of a version lie, there or not."""
    return artifact if version == BASE else artifact / FOLDER / str(version)


def versions_of(artifact: Path) -> list[int]:
    """All versions, ascending. Raises ArtifactError when there is not even the first."""
    if not (artifact / CATALOGUE).is_file():
        raise ArtifactError(artifact / CATALOGUE, "is missing: not an artifact folder")
    found = artifact / FOLDER
    names = [path.name for path in found.iterdir() if path.is_dir()] if found.is_dir() else []
    return [BASE, *sorted(int(name) for name in names if name.isdecimal() and int(name) > BASE)]


def check_exists(artifact: Path, version: int) -> None:
    """Raises InputError that lists the versions."""
    there = versions_of(artifact)
    if version not in there:
        raise InputError("version", f"{version} is not there", f"one of {', '.join(map(str, there))}")


def read_current(artifact: Path) -> Current:
    """The pointer; without one, version 1. Raises ArtifactError."""
    path = artifact / FOLDER / POINTER
    if is_absent(path):
        return Current()
    try:
        said = read_json(path)
        before = tuple(int(v) for v in said["before"])
        return Current(int(said["version"]), int(said["serial"]), before, int(said["highest"]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ArtifactError(path, f"does not name a version: {error!r}") from error


def to_start_with(artifact: Path) -> int:
    """The version that the pointer names, or, where its files are not sound, the one before: servers serve that on.

    Raises ArtifactError about the first where none of those before is sound.
    """
    problem = None
    for version in read_current(artifact).newest_first:
        try:
            check_files(artifact, version)
        except ArtifactError as error:
            log.warning("catalogue version %d is refused: %s", version, error)
            problem = problem or error
        else:
            return version
    assert problem
    raise problem


def point(artifact: Path, to: Current) -> None:
    """Replace the pointer."""
    path = artifact / FOLDER / POINTER
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(to._asdict()) + "\n")


@contextmanager
def locked(artifact: Path) -> Iterator[None]:
    """One change of an artifact's versions at a time, whichever process makes it."""
    versions_of(artifact)
    (artifact / FOLDER).mkdir(exist_ok=True)
    with locked_folder(artifact / FOLDER):
        yield


def of_another_catalogue(
    artifact: Path, version: int, digest: Callable[[Path], str] = manifest.digest_file
) -> bool:
    """Whether a version says that it was made beside another `catalogue.parquet`, as before `genrec data` made a new
    one: it is never served again. `digest` is a sha256. Raises ArtifactError.
    """
    made = manifest.read(folder_of(artifact, version)).get(MADE)
    return version != BASE and made is not None and made["key"] != digest(artifact / CATALOGUE)


def check_files(artifact: Path, version: int) -> None:
    """Refuse a version with a file missing or not as it was made, or of another artifact. Raises ArtifactError."""
    folder = folder_of(artifact, version)
    stages = manifest.read(folder)
    entry = stages.get(INDEXED)
    if entry is None and version != BASE:
        raise ArtifactError(folder, f"is missing, or not a whole version{OTHER_VERSION}")
    if entry is None:
        made = f"{command('build', artifact)} makes it, after {command('export', artifact)}"
        raise ArtifactError(folder, f"has no index of its items; {made}")
    remedy = manifest.anew(artifact, INDEXED) if version == BASE else OTHER_VERSION
    for name in (CATALOGUE, VALIDITY, VALID_IDS):
        _check_file(folder / name, entry, remedy)
    if version == BASE:
        return
    _check_made_for(artifact, CATALOGUE, folder, stages.get(MADE, {}))
    if TOKENS in stages:
        _check_file(folder / ITEM_TOKENS, stages[TOKENS], OTHER_VERSION)
        _check_made_for(artifact, ITEM_TOKENS, folder, stages[TOKENS])
    if GROUPED in stages:
        _check_file(folder / GROUPS, stages[GROUPED], OTHER_VERSION)


def _check_file(path: Path, stage: dict[str, Any], remedy: str) -> None:
    """Raises ArtifactError with a `remedy` unless `path` is as a stage of the manifest beside it says."""
    # The command that makes a file of this name makes the artifact's own
    if remedy == OTHER_VERSION and is_absent(path):
        raise ArtifactError(path, f"is missing{remedy}")
    if stage["outputs"].get(path.name) != manifest.digest_file(path):
        raise ArtifactError(path, f"is not the file that {manifest.NAME} beside it describes{remedy}")


def _check_made_for(artifact: Path, name: str, folder: Path, stage: dict[str, Any]) -> None:
    """Raises ArtifactError unless a stage of the version in `folder` was made beside the artifact's file `name`."""
    if stage.get("key") != manifest.digest_file(artifact / name):
        remedy = f"; {command('catalogue swap', artifact, str(BASE))} serves its own{OTHER_VERSION}"
        raise ArtifactError(folder, f"was made for another {name} than that of {artifact}{remedy}")
