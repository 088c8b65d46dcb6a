"""What `genrec batch` reads, users by blocks, and what it writes, a row per item of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clients.wire import Answered
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular, put
from genrec.rank.kinds import PAST_INPUTS
from genrec.steps.known_features import KnownFeatures
from genrec.steps.known_users import HISTORIES, KnownUsers

BLOCK_USERS = 1 << 12  # as `genrec data` writes them to a row group
WRITERS = {".parquet": pq.ParquetWriter, ".csv": pyarrow.csv.CSVWriter}

# `history` int64[n] of a user, oldest first; where the data set has them, `times` and `ratings` of its items, and
# `features` int32[f] of him
Known = dict[str, NDArray[np.signedinteger]]


class Block(NamedTuple):
    """n users: `user_ids` int64[n], `names` string[n] as the source spells them, and what is `known` of each."""

    user_ids: pa.Array
    names: pa.Array
    known: list[Known]


def users_in(artifact: Path) -> int:
    """How many users the data set has. Raises ArtifactError."""
    with _opened(artifact) as file:
        return int(file.metadata.num_rows)


def blocks_of(artifact: Path) -> Iterator[Block]:
    """All users, in the order of the file. Raises ArtifactError."""
    users, features = KnownUsers(artifact), KnownFeatures(artifact)

    def known_of(user: int) -> Known:
        row = users.complete({"user_id": np.array([[user]])}, PAST_INPUTS)
        return {"features": features.of(user), **{name: row[name][0] for name in row if name != "user_id"}}

    with _opened(artifact) as file:
        for batch in file.iter_batches(BLOCK_USERS, columns=["user_id", "user"]):
            ids = batch["user_id"]
            names = pc.coalesce(batch["user"], ids.cast(pa.string()))
            yield Block(ids, names, [known_of(user) for user in ids.to_pylist()])


@contextmanager
def _opened(artifact: Path) -> Iterator[pq.ParquetFile]:
    path = artifact / HISTORIES
    try:
        with pq.ParquetFile(check_regular(path), memory_map=True) as file:
            yield file
    except (pa.ArrowException, KeyError) as error:
        raise ArtifactError(path, f"not a readable histories file: {error}") from error


@contextmanager
def writing(out: Path, keys: pa.Table) -> Iterator[Callable[[Block, Sequence[Answered]], None]]:
    """A function that writes the answers of a block. The file has its name once all is in it; until then, and where
    something fails, what was there stays. `keys`: as `genrec.catalogue.keys.load_keys` has them. Raises InputError.
    """
    make = WRITERS.get(out.suffix.lower())
    if make is None or out.is_dir():
        raise InputError("out", f"is {str(out)!r}", "a file whose name ends in .parquet or .csv")
    partial = out.with_name(f"{out.name}.partial")
    try:
        with make(partial, _table(NOBODY, [], keys).schema) as writer:
            yield lambda block, answers: writer.write_table(_table(block, answers, keys))
        put(partial, out)
    finally:
        partial.unlink(missing_ok=True)


NOBODY = Block(pa.array([], pa.int64()), pa.array([], pa.string()), [])


def _table(block: Block, answers: Sequence[Answered], keys: pa.Table) -> pa.Table:
    """Rows of all items answered, user by user, best first; with `item` where the source has keys of items."""
    sizes = np.array([len(each.item_ids) for each in answers], np.int64)
    of = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.arange(len(of)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    ids = pa.array(np.concatenate([np.zeros(0, np.int64), *(each.item_ids for each in answers)]))
    columns = {
        "user_id": block.user_ids.take(of), "user": block.names.take(of),
        "rank": pa.array(rank, pa.int32()), "item_id": ids,
    }  # fmt: skip
    if len(keys):
        named = keys["key"].take(pc.index_in(ids, keys["item_id"]))
        columns["item"] = pc.coalesce(named, ids.cast(pa.string()))
    scores = np.concatenate([np.zeros(0, np.float32), *(each.scores for each in answers)])
    return pa.table({**columns, "score": pa.array(scores)})
