"""Semantic IDs: item vectors from text and co-occurrence, quantised level by level into residual codebooks.

The text part is hashed TF-IDF of title and genre words, the co-occurrence part the positive pointwise mutual
information of items near each other in the training part of histories; both are reduced by a truncated SVD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genrec.catalogue.semantic_id import MAX_SIZE
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.progress import ticking
from training.data.histories import BATCH_USERS, stored_items
from training.data.json_object import read_each_once
from training.data.kinds import kind_of
from training.data.steps import Steps
from training.data.tables import ITEM, read_table, required, text, where
from training.data.utf8 import unreadable
from training.vectors.cooccurrence import cooccurrence_vectors
from training.vectors.stored import ItemVectors, Stored
from training.vectors.text import text_vectors

SEMANTIC_IDS = (
    'JSON {item: ["<a_12>", "<b_3>", ...]} or CSV item,code_1,..,code_L, one length for all,'
    f" codes 0 to {MAX_SIZE - 1}"
)
EVERY_ITEM = "a semantic ID for every item"


def item_vectors(
    items: pa.Table,
    rows: np.ndarray,
    offsets: np.ndarray,
    rank: int,
    text_weight: float,
    seed: int,
    steps: Steps,
) -> ItemVectors:
    """Both parts side by side; `rows` int32[total] and `offsets` int64[U + 1] are the histories to learn from."""
    n = items.num_rows
    parts = (
        (
            steps.make("text.f32", lambda p: text_vectors(items["title"], items["genre"], rank, seed, p)),
            text_weight,
        ),
        (
            steps.make("pairs.f32", lambda p: cooccurrence_vectors(rows, offsets, n, rank, seed, p)),
            1 - text_weight,
        ),
    )
    return ItemVectors([(Stored.of(path, n), weight) for path, weight in parts])


def training_part(histories: Path, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`histories.parquet` without the two newest items of each user, as rows of the ascending `ids` int64[n].

    Returns int32[total] and offsets int64[U + 1]. Read in blocks. Raises ArtifactError.
    """
    try:
        with pq.ParquetFile(check_regular(histories)) as file:
            users = file.metadata.num_rows
            rows = np.empty(max(stored_items(file.metadata) - 2 * users, 0), np.int32)
            lengths, at = [np.zeros(1, np.int64)], 0
            with ticking("histories", users, "user") as bar:
                for batch in file.iter_batches(BATCH_USERS, columns=["items"]):
                    items, ends = batch["items"].flatten().to_numpy(), batch["items"].offsets.to_numpy()[1:]
                    ends = ends - batch["items"].offsets[0].as_py()
                    keep = np.ones(len(items), bool)
                    keep[ends - 1] = keep[ends - 2] = False
                    kept = items[keep]
                    rows[at : at + len(kept)] = np.searchsorted(ids, kept)
                    lengths.append(np.diff(ends, prepend=0) - 2)
                    at += len(kept)
                    bar.update(len(batch))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ArtifactError(histories, f"not a readable histories file: {error}") from error
    return rows, np.cumsum(np.concatenate(lengths))


def read_semantic_ids(path: Path) -> dict[str, list[int]]:
    """Published semantic IDs by item key: JSON {item: ["<a_12>", ...]} or CSV item, code_1, ..., code_L.

    Raises InputError naming the file and the item or line.
    """
    given: dict[str, list[int]] = {}
    for place, item, codes in rows_of_items(path):
        if isinstance(codes, str):  # which would be taken for its letters
            raise InputError(
                str(path), f"{place}: item {item!r} has {codes!r}, no list of codes", SEMANTIC_IDS
            )
        try:
            given[item] = [code_of(code) for code in codes]
        except (ValueError, TypeError) as error:
            raise InputError(str(path), f"{place}: {error}", SEMANTIC_IDS) from error
    first = {len(codes): item for item, codes in reversed(given.items())}
    if len(first) != 1 or 0 in first:
        told = ", ".join(f"{length} (item {first[length]!r})" for length in sorted(first)[:3])
        raise InputError(str(path), f"semantic IDs have {told or 'no'} codes", SEMANTIC_IDS)
    return given


def rows_of_items(
    path: Path, name: str = "code", accepted: str = SEMANTIC_IDS
) -> Iterator[tuple[str, str, list[object]]]:
    """(place for errors, item, its list as it is spelled) of every item of a file, JSON or with columns `name`_1, ....

    Raises InputError, also for an item that is there twice.
    """
    return (_items_of_json if kind_of(path) == ".json" else _items_of_table)(path, name, accepted)


def _items_of_json(path: Path, _: str, accepted: str) -> Iterator[tuple[str, str, list[object]]]:
    try:
        items = read_each_once(path, "item", accepted).items()
    except ArtifactError as error:
        raise unreadable(path, error.problem, accepted) from error
    except AttributeError as error:
        raise InputError(str(path), "is no object with an item under every name", accepted) from error
    return ((f"item {item!r}", str(item), parts) for item, parts in items)


def _items_of_table(path: Path, name: str, accepted: str) -> Iterator[tuple[str, str, list[object]]]:
    table = read_table(path, accepted)
    keys = required(table, path, ITEM).to_pylist()
    names = {each for each in table.column_names if re.fullmatch(rf"{name}_\d+", each)}
    if not names:
        raise InputError(str(path), f"has no column {name}_1", accepted)
    numbered = sorted((int(each.rpartition("_")[2]), each) for each in names)
    named = [each for _, each in numbered]
    if len({number - place for place, (number, _) in enumerate(numbered)}) > 1:
        problem = f"has the columns {', '.join(named)}: a number is left out or twice"
        raise InputError(str(path), problem, accepted)
    columns = [text(table, path, (each,)).to_pylist() for each in named]
    seen: set[str] = set()
    for row, (key, *parts) in enumerate(zip(keys, *columns, strict=True)):
        if key in seen:
            raise InputError(str(path), f"{where(path, row)}: item {key!r} is there twice", accepted)
        seen.add(key)
        yield where(path, row), key, parts


def lists_of(
    given: Mapping[str, list[int]], keys: Sequence[str], path: Path, accepted: str
) -> NDArray[np.int64]:
    """What a file gives for the items `keys`, a list of one length each: int64[n, l]. Raises InputError."""
    missing = [key for key in keys if key not in given]
    if missing:
        problem = f"lacks {len(missing)} of {len(keys)} items, the first is {missing[0]!r}"
        raise InputError(str(path), problem, accepted)
    return np.array([given[key] for key in keys], np.int64)


def code_of(value: object) -> int:
    """`"<a_12>"`, `"12"` or 12 -> 12. Raises ValueError."""
    found = re.fullmatch(r"(?:<\w+_)?(\d+)>?", str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a code")
    if len(found[1]) > 10 or int(found[1]) >= MAX_SIZE:
        raise ValueError(f"the code {value} is beyond {MAX_SIZE - 1}")
    return int(found[1])
