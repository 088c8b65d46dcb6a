"""What `genrec batch` reads, users by blocks, and what it writes, a row per item of a list."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
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
from genrec.manifest import making, recorded
from genrec.rank.kinds import PAST_INPUTS
from genrec.steps.known_features import KnownFeatures
from genrec.steps.known_users import HISTORIES, KnownUsers

BLOCK_USERS = 1 << 12  # as `genrec data` writes them to a row group
VERSIONS = b"catalogue versions"  # among the metadata of a part
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


def blocks_of(artifact: Path, behind: int = 0) -> Iterator[Block]:
    """All users, in the order of the file, `behind` so many blocks. Raises ArtifactError."""
    users, features = KnownUsers(artifact), KnownFeatures(artifact)

    def known_of(user: int) -> Known:
        row = users.complete({"user_id": np.array([[user]])}, PAST_INPUTS)
        return {"features": features.of(user), **{name: row[name][0] for name in row if name != "user_id"}}

    with _opened(artifact) as file:
        for batch in islice(file.iter_batches(BLOCK_USERS, columns=["user_id", "user"]), behind, None):
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


class Lists:
    """The answers that are there, a file per block in the folder `parts`; a run of the same `key` takes them over.
    Those of another run go when this one has its first.

    `blocks` counts them, and `versions` are those of the catalogue that they are of: of one, where they are taken over;
    others may have come by a swap that was taken back. `keys`: as `genrec.catalogue.keys.load_keys` has them.
    """

    def __init__(self, parts: Path, key: str, keys: pa.Table) -> None:
        """Raises InputError for a folder that this command has not made, OSError."""
        self.parts, self.key, self.keys = parts, key, keys
        self._said = parts / "key"
        if parts.exists() and not self._said.is_file() and any(parts.iterdir()):
            raise InputError(
                "out", f"has {parts} beside it, which is not of a run that ended", "another name"
            )
        if not self._said.is_file():
            self.begin()
        self.versions: set[int] = set()
        numbers = count() if self.is_own else ()
        self.blocks = next((number for number in numbers if not self._takes_over(number)), 0)

    @property
    def is_own(self) -> bool:
        """Whether the folder is of this run, or of one of its key."""
        return self._said.is_file() and self._said.read_text() == self.key

    def begin(self) -> None:
        """Make the folder that of this run, unless it is."""
        if not self.is_own:
            if self.parts.exists():
                self.remove()
            self.parts.mkdir()
            self._said.write_text(self.key)

    def write(self, block: Block, answers: Sequence[Answered]) -> None:
        """The next block."""
        self.begin()
        part = self._part(self.blocks)
        partial = part.with_suffix(".partial")
        versions = {each.catalogue_version for each in answers}
        table = _table(block, answers, self.keys)
        pq.write_table(table.replace_schema_metadata({VERSIONS: json.dumps(sorted(versions))}), partial)
        put(partial, part)
        self.blocks += 1
        self.versions |= versions

    def remove(self) -> None:
        """Take the folder away; what says whose it is goes last, so that one that is ended here leaves no stranger."""
        for each in self.parts.iterdir():
            if each != self._said:
                each.unlink()
        shutil.rmtree(self.parts)

    def tables(self) -> Iterator[pa.Table]:
        """All that was written, in order."""
        return (pq.read_table(self._part(number), memory_map=True) for number in range(self.blocks))

    def _takes_over(self, number: int) -> bool:
        part = self._part(number)
        if not part.exists():
            return False
        said = (pq.read_schema(part).metadata or {}).get(VERSIONS, b"[]")
        versions = self.versions | set(json.loads(said))
        if len(versions) > 1:
            return False
        self.versions = versions
        return True

    def _part(self, number: int) -> Path:
        return self.parts / f"{number}.parquet"


@contextmanager
def writing(out: Path, keys: pa.Table, key: str) -> Iterator[Lists]:
    """What takes the answers, block by block. The file has its name once all is in it; until then, and where something
    fails, what was there stays, and blocks are kept for a run of the same `key`. Raises InputError, and ArtifactError
    where another process writes the same file.
    """
    make = WRITERS.get(out.suffix.lower())
    if make is None or out.is_dir():
        raise InputError("out", f"is {str(out)!r}", "a file whose name ends in .parquet or .csv")
    if out.parent.is_dir() and recorded(out.parent, out.name):  # or of a version of its catalogue
        raise InputError("out", f"is {str(out)!r}, a file of the artifact", "another name")
    with making(out.parent, out.name):
        lists = Lists(out.with_name(f"{out.name}.parts"), key, keys)
        partial = lists.parts / out.name
        try:
            yield lists
            lists.begin()
            with make(partial, _table(NOBODY, [], keys).schema) as writer:
                for table in lists.tables():
                    writer.write_table(table)
            put(partial, out)
        except BaseException:
            if lists.blocks:
                partial.unlink(missing_ok=True)
                print(
                    f"{lists.parts} keeps what is answered: the same command goes on behind it",
                    file=sys.stderr,
                )
                raise
            if lists.is_own:
                lists.remove()
            raise
        lists.remove()


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
