"""Whether a catalogue version is sound: its files are of each other, of the model, and items keep their codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.files import CATALOGUE, VALID_IDS, VALIDITY
from genrec.catalogue.indices import load_valid_ids, load_validity
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.versions import BASE, check_exists, check_files, folder_of, read_current
from genrec.errors import ArtifactError


def verify(artifact: Path, version: int) -> None:
    """`check_files`, and whether the files are of each other and of the model, and items keep their codes: those of
    version 1 and of the current one, as far as these are sound themselves.

    Raises InputError for a version that is not there, ArtifactError naming the file.
    """
    check_exists(artifact, version)
    check_files(artifact, version)
    folder, config = folder_of(artifact, version), load_config(artifact)
    catalogue, index = load_catalogue(folder, config), load_validity(folder, config)
    paths = index.paths(index.levels)
    ids = pack(catalogue.codes, catalogue.codebook_sizes)
    if index.items != len(catalogue) or not np.array_equal(paths[index.row_leaf], ids):
        raise ArtifactError(folder / VALIDITY, f"is not the index of {CATALOGUE} beside it")
    if not np.array_equal(load_valid_ids(folder, index).find(paths), np.arange(len(paths))):
        raise ArtifactError(folder / VALID_IDS, f"is not the hash set of {VALIDITY} beside it")
    for other in {BASE, read_current(artifact).version} - {version}:
        if not _sound(artifact, other):
            continue
        before = load_catalogue(folder_of(artifact, other), config)
        changed = changed_item(catalogue, before)
        if changed is not None:
            row, there = changed
            here, item = catalogue.codes[row].tolist(), catalogue.item_ids[row]
            problem = f"item {item} has the codes {here} here and {there} in version {other}"
            raise ArtifactError(folder / CATALOGUE, f"{problem}; an item keeps its codes")


def _sound(artifact: Path, version: int) -> bool:
    try:
        check_files(artifact, version)
    except ArtifactError:
        return False
    return True


def changed_item(catalogue: Catalogue, before: Catalogue) -> tuple[int, list[int]] | None:
    """The row of the first item whose codes are others than before, and those codes; None when all that both know keep
    theirs.
    """
    rows = before.rows_of(catalogue.item_ids)
    known = np.flatnonzero(rows >= 0)
    different = (catalogue.codes[known] != before.codes[rows[known]]).any(axis=1)
    if not different.any():
        return None
    row = int(known[np.argmax(different)])
    return row, before.codes[rows[row]].tolist()
