"""A version of an artifact's catalogue: which one it starts from, what that one has, and the next one written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build.validity import build_validity
from genrec.catalogue.files import CATALOGUE, GROUPS, ITEM_TOKENS
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import (
    FOLDER,
    GROUPED,
    MADE,
    TOKENS,
    check_exists,
    check_files,
    folder_of,
    read_current,
    versions_of,
)
from genrec.files import scratch_in
from genrec.manifest import digest_file, record
from genrec.models.config import ModelConfig
from genrec.progress import counting
from genrec.rank.item_tokens import read_item_tokens, save_item_tokens


def base_of(artifact: Path, base: int | None) -> int:
    """The version to start from, sound: if nobody says which, the newest; the one that is served where the newest has
    been served before, as after a rollback: what was taken back shall not return with the next version.
    """
    if base is None:
        current, newest = read_current(artifact), versions_of(artifact)[-1]
        base = newest if newest > current.highest else current.version
    check_exists(artifact, base)
    check_files(artifact, base)
    return base


def load_version(
    artifact: Path, version: int, config: ModelConfig
) -> tuple[Catalogue, NDArray[np.int32], Groups]:
    """A version's items, their own tokens int32[n, t], t being 0 where they have none, and groups. ArtifactError."""
    folder = folder_of(artifact, version)
    catalogue = Catalogue.load(folder / CATALOGUE)
    groups = Groups.load(folder, len(catalogue))
    if not (artifact / ITEM_TOKENS).exists():
        return catalogue, np.zeros((len(catalogue), 0), np.int32), groups
    return catalogue, read_item_tokens(folder, len(catalogue), config), groups


def write_version(
    artifact: Path, catalogue: Catalogue, tokens: NDArray[np.int32], groups: Groups, facts: dict[str, Any]
) -> int:
    """Lay out the next version, with its items' own `tokens` [n, t]; it appears whole or not at all."""
    version = max(*versions_of(artifact), read_current(artifact).highest) + 1
    with (
        scratch_in(artifact / FOLDER) as scratch,
        counting(f"version {version}", 2, "stage") as bar,
    ):
        folder = scratch / str(version)
        folder.mkdir()
        catalogue.save(folder / CATALOGUE)
        bar.update()
        build_validity(folder)
        bar.update()
        record(folder, MADE, digest_file(artifact / CATALOGUE), [folder / CATALOGUE], facts)
        if tokens.shape[1]:
            save_item_tokens(folder, tokens)
            record(folder, TOKENS, digest_file(artifact / ITEM_TOKENS), [folder / ITEM_TOKENS], {})
        if len(groups):
            groups.save(folder / GROUPS)
            sizes = {name: len(rows) for name, rows in zip(groups.names, groups.members, strict=True)}
            record(folder, GROUPED, digest_file(folder / CATALOGUE), [folder / GROUPS], sizes)
        folder.rename(folder_of(artifact, version))
    return version
