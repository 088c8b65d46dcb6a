"""Items as their source spells them: the keys that `items.parquet` has beside the ids.

Keys of items that came with a later catalogue version are in `catalogues/items.parquet`, with all that were before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.catalogue.versions import FOLDER
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, put
from genrec.manifest import digest_file

ITEMS = "items.parquet"
KEYS = pa.schema({"item_id": pa.int64(), "key": pa.string()})
OF = b"of"  # in the metadata of the longer file: the sha256 of the one that it goes on from


def load_keys(artifact: Path) -> pa.Table:
    """`KEYS` of the artifact's items; no rows where it has no `items.parquet`. Raises ArtifactError."""
    path, longer = artifact / ITEMS, artifact / FOLDER / ITEMS
    if not path.exists():
        return KEYS.empty_table()
    if longer.exists():
        keys = _read(longer)
        if (keys.schema.metadata or {}).get(OF) == digest_file(path).encode():  # else `genrec data` ran again
            return keys
    return _read(path)


def _read(path: Path) -> pa.Table:
    try:
        keys = pq.read_table(check_regular(path), columns=KEYS.names)
        return keys.cast(KEYS.with_metadata(keys.schema.metadata)).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(path, f"not a readable items file: {error}") from error


def save_keys(artifact: Path, keys: pa.Table) -> None:
    """`KEYS` of all items, those of `items.parquet` and later ones; for who has the versions `locked`."""
    path = artifact / FOLDER / ITEMS
    partial = path.with_name(f"{ITEMS}.partial")
    pq.write_table(keys.replace_schema_metadata({OF: digest_file(artifact / ITEMS)}), partial)
    put(partial, path)


def find_ids(
    known: pa.Table, keys: Sequence[str], field: str, limit: str, at: Callable[[int], str] = lambda place: ""
) -> list[int]:
    """Ids of n keys, of which `known` has all. Raises InputError about `field`, which has the key `at` a place, that
    names the first that is neither key nor id; where there is none, the first id among keys.
    """
    # As bytes: an argument of a command line need not be UTF-8, and is a key of nothing then
    given = pa.array([key.encode(errors="surrogateescape") for key in keys], pa.binary())
    rows = pc.index_in(given, known["key"].cast(pa.binary()))
    if rows.null_count:
        known_ids = known["item_id"].cast(pa.string()).cast(pa.binary())
        neither = pc.and_not(rows.is_null(), pc.is_in(given, known_ids))
        unknown = pc.any(neither).as_py()
        place = (neither if unknown else rows.is_null()).index(True).as_py()
        problem = f"{at(place)}has {keys[place]!r}, {'which is no key' if unknown else 'an id among keys'}"
        raise InputError(field, problem, f"{limit}, or keys of {ITEMS} alone")
    ids: list[int] = known["item_id"].take(rows).to_pylist()
    return ids


def find_names(known: pa.Table, ids: Sequence[int]) -> dict[int, str]:
    """Keys of those of the ids that `known` has under another name than their number."""
    keys = known["key"].take(pc.index_in(pa.array(ids, pa.int64()), known["item_id"])).to_pylist()
    return {item: key for item, key in zip(ids, keys, strict=True) if key not in (None, str(item))}
