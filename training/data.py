"""Interactions -> `histories.parquet` and `items.parquet`: integer ids, time order, duplicates dropped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from training.keys import number_keys
from training.sources import Source

MIN_HISTORY = 3  # one item to learn from, one to validate, one to test


@dataclass(frozen=True, eq=False)
class Histories:
    """U users, ragged: `user_ids` int64[U], `items` int64[total] oldest first, `offsets` int64[U + 1]."""

    user_ids: np.ndarray
    items: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.user_ids)

    @property
    def lengths(self) -> np.ndarray:
        """int64[U]."""
        return np.diff(self.offsets)

    def cut(self, last: int) -> Histories:
        """Histories without their `last` newest items: 2 is the training part, 1 what the test is given."""
        lengths = self.lengths - last
        keep = np.arange(len(self.items)) < np.repeat(self.offsets[1:] - last, self.lengths)
        return Histories(self.user_ids, self.items[keep], np.concatenate(([0], np.cumsum(lengths))))

    def nth_last(self, n: int) -> np.ndarray:
        """The n-th newest item of every user (1 = the test item): int64[U]."""
        return self.items[self.offsets[1:] - n]

    def sample(self, users: int, seed: int) -> Histories:
        """At most `users` of the users, drawn once per seed, shortest history first. Raises InputError."""
        if users < 1:
            raise InputError("users", f"is {users}", f"1 or more; there are {len(self)}")
        chosen = np.random.default_rng(seed).permutation(len(self))[:users]
        chosen = chosen[np.argsort(self.lengths[chosen], kind="stable")]
        rows = self.rows()
        items = np.concatenate([rows[u] for u in chosen])
        return Histories(self.user_ids[chosen], items, np.concatenate(([0], np.cumsum(self.lengths[chosen]))))

    def rows(self) -> list[np.ndarray]:
        """One view per user."""
        return np.split(self.items, self.offsets[1:-1])

    def save(self, path: Path, user_keys: list[str]) -> None:
        """Write `histories.parquet`; column `user` keeps the source's own spelling."""
        items = pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), pa.array(self.items, pa.int64()))
        pq.write_table(
            pa.table({"user_id": pa.array(self.user_ids), "items": items, "user": user_keys}), path
        )

    @classmethod
    def load(cls, path: Path) -> Histories:
        """Read `histories.parquet`. Raises ArtifactError."""
        try:
            table = pq.read_table(check_regular(path), columns=["user_id", "items"])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ArtifactError(path, f"not a readable histories file: {error}") from error
        items = table["items"].combine_chunks()
        lengths = pc.list_value_length(items).to_numpy(zero_copy_only=False)
        if table.num_rows == 0 or lengths.min() < MIN_HISTORY:
            raise ArtifactError(path, f"every history needs {MIN_HISTORY} items or more")
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return cls(table["user_id"].to_numpy(), items.flatten().to_numpy(), offsets)


def write_data(source: Source, out: Path) -> list[str]:
    """Source -> `out`/histories.parquet and `out`/items.parquet; returns the report, one line per finding."""
    notes = list(source.notes)
    users, items, times = source.users.dictionary_encode(), source.items.dictionary_encode(), source.times
    user_keys, seen_keys = users.dictionary.to_pylist(), items.dictionary.to_pylist()
    unknown = sorted(set(seen_keys) - set(source.item_keys))
    if unknown:
        notes.append(f"{len(unknown)} items have no row in the items file; their key serves as the title")
    keys = source.item_keys + unknown
    item_ids, named = number_keys(keys, "item", "items.parquet", source.place_of_item)
    notes += named
    user_ids, named = number_keys(user_keys, "user", "histories.parquet", source.place_of_user)
    notes += named
    position = {key: row for row, key in enumerate(keys)}
    seen_ids = item_ids[[position[key] for key in seen_keys]]
    user = users.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    item = items.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    first = np.sort(np.unique(np.stack((user, item, times), axis=1), axis=0, return_index=True)[1])
    if len(first) < len(user):
        notes.append(f"{len(user) - len(first)} duplicated rows (same user, item and timestamp) dropped")
    user, item, times = user[first], item[first], times[first]
    enough = np.bincount(user, minlength=len(user_keys)) >= MIN_HISTORY
    if not enough.all():
        notes.append(
            f"{(~enough).sum()} of {len(enough)} users with fewer than {MIN_HISTORY} interactions dropped"
        )
    if not enough.any():
        raise InputError("interactions", f"no user has {MIN_HISTORY}", f"users with {MIN_HISTORY} or more")
    user, item, times = user[enough[user]], item[enough[user]], times[enough[user]]
    order = np.lexsort((times, user))  # stable: ties stay in file order
    kept = np.flatnonzero(enough)
    kept = kept[np.argsort(user_ids[kept], kind="stable")]
    by_user = np.split(seen_ids[item[order]], np.cumsum(np.bincount(user, minlength=len(user_keys)))[:-1])
    histories = Histories(
        user_ids[kept],
        np.concatenate([by_user[u] for u in kept]),
        np.concatenate(([0], np.cumsum([len(by_user[u]) for u in kept]))),
    )
    out.mkdir(parents=True, exist_ok=True)
    histories.save(out / "histories.parquet", [user_keys[u] for u in kept])
    blank = [""] * len(unknown)
    columns = {
        "item_id": item_ids,
        "key": keys,
        "title": source.titles + unknown,
        "genre": source.genres + blank,
    }
    pq.write_table(pa.table(columns).sort_by("item_id"), out / "items.parquet")
    lengths = histories.lengths
    notes.append(
        f"{len(histories)} users, {len(keys)} items, {lengths.sum()} interactions,"
        f" histories of {lengths.min()} to {lengths.max()} items (median {int(np.median(lengths))})"
    )
    return notes
