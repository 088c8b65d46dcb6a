"""New items that are named as their source spells items: each new key gets an id, as `genrec data` would give it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import KEYS, find_ids, load_keys
from genrec.catalogue.versions import folder_of, versions_of
from genrec.errors import InputError
from training.data.keys import INT64, are_plain
from training.data.tables import ITEM, name_of, required, where

LIKE = "like"


def with_ids(table: pa.Table, path: Path, artifact: Path) -> tuple[pa.Table, pa.Table | None]:
    """The table of a file with ids for keys in its columns item and like; `KEYS` of all items where some are new.

    A column of whole numbers alone has ids already, and so has every column where ids are the keys. Raises InputError,
    ArtifactError.
    """
    known, keys = load_keys(artifact), None
    if known["key"].equals(known["item_id"].cast(pa.string())):
        return table, keys
    given = required(table, path, ITEM)
    if not are_plain(given).all():
        keys = _longer(known, given, artifact)
        table = _replaced(table, name_of(table, ITEM), _ids(given, keys))
    if LIKE in table.column_names and not are_plain(like := required(table, path, (LIKE,))).all():
        keys_of, field = like.to_pylist(), f"{path}, column {LIKE}"
        ids = find_ids(known, keys_of, field, "ids alone", lambda row: f"{where(path, row)} ")
        table = _replaced(table, LIKE, pa.array(ids, pa.int64()))
    return table, keys


def _ids(given: pa.Array, keys: pa.Table) -> pa.Array:
    """Ids int64[n] of n keys; null where there is none."""
    return keys["item_id"].combine_chunks().take(pc.index_in(given, keys["key"]))


def _replaced(table: pa.Table, name: str, ids: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, ids.cast(pa.string()))


def _longer(known: pa.Table, given: pa.Array, artifact: Path) -> pa.Table:
    """`known` and the keys that are new, whose ids follow on the largest that any version has. Raises InputError."""
    new = pc.unique(given.filter(pc.invert(pc.is_in(given, known["key"]))))
    files = [folder_of(artifact, version) / CATALOGUE for version in versions_of(artifact)]
    ids = [known["item_id"].to_numpy(), *(Catalogue.load(file, titles=False).item_ids for file in files)]
    first = max(int(each.max()) for each in ids) + 1
    if first + len(new) > INT64.max:
        raise InputError(
            "items", f"are named by keys, and {first - 1} is an id already", "ids that leave room"
        )
    named = pa.table({"item_id": pa.array(range(first, first + len(new)), pa.int64()), "key": new}, KEYS)
    return pa.concat_tables([known, named])
