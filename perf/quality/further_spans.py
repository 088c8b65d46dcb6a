"""A data set cut by time: the oldest events, files of those that came since, and a file to test on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genrec.catalogue.files import CATALOGUE
from genrec.errors import InputError
from training.data.histories import MIN_HISTORY, RATINGS, TIMES, history_table
from training.stages import CODEBOOKS, SOURCE, load_items, tokenise

TEST = 0.05  # of all events


class Spans(NamedTuple):
    """`base` is an artifact of the oldest events, `whole` one of all before the test, under the semantic IDs of `base`.
    `files` are events between, in order of time; `test` is the file of those after them.
    """

    base: Path
    whole: Path
    files: list[Path]
    test: Path


def cut(artifact: Path, out: Path, share: float, files: int, size: int) -> Spans:
    """`artifact`'s data in `out`: the oldest `share` of the events, then `files` of `size` each, and the test.

    Raises InputError, ArtifactError.
    """
    if not 0 < share < 1:
        raise InputError("base", f"is {share}", "a share of the events between 0 and 1")
    events = events_by_time(artifact)
    first, test = int(share * len(events)), int(TEST * len(events))
    ends = [first + size * number for number in range(files + 1)]
    if ends[-1] + test > len(events) or not test:
        problem = f"of {size} events are {files}, behind {first} and before {test}"
        raise InputError("files", problem, f"files that fit into {len(events)} events in all")
    made = Spans(
        out / "base", out / "whole", [out / f"{n}.parquet" for n in range(1, files + 1)], out / "test.parquet"
    )
    for path, begin, end in zip([*made.files, made.test], ends, [*ends[1:], ends[-1] + test], strict=True):
        pq.write_table(events.slice(begin, end - begin), path)
    for folder, end in ((made.base, first), (made.whole, ends[-1])):
        _write_artifact(folder, events.slice(0, end), artifact)
    for line in tokenise(made.base):
        print(f"  {line}", flush=True)
    for name in (CATALOGUE, CODEBOOKS):
        shutil.copy(made.base / name, made.whole)
    return made


def events_by_time(artifact: Path) -> pa.Table:
    """All events, oldest first: user, item, as the source spells them, timestamp, and rating where there are any.

    Raises InputError, ArtifactError.
    """
    items, path = load_items(artifact), artifact / "histories.parquet"
    table = pq.read_table(path).combine_chunks()
    if TIMES.name not in table.column_names:
        raise InputError(str(path), "has no times", "what `genrec data` makes of interactions with timestamp")
    lengths = pc.list_value_length(table["items"]).to_numpy()
    row = pc.index_in(pc.list_flatten(table["items"]), items["item_id"].combine_chunks())
    columns = {
        "user": table["user"].take(pa.array(np.repeat(np.arange(len(table)), lengths))),
        "item": items["key"].take(row),
        "timestamp": pc.list_flatten(table[TIMES.name]),
    }
    if RATINGS.name in table.column_names:
        columns["rating"] = pc.list_flatten(table[RATINGS.name])
    return pa.table(columns).take(pa.array(np.argsort(columns["timestamp"].to_numpy(), kind="stable")))


def _write_artifact(folder: Path, events: pa.Table, of: Path) -> None:
    """Histories of `events`, without users of too few, as `genrec data` makes them, beside the items of `of`."""
    folder.mkdir()
    for name in ("items.parquet", SOURCE):
        if (of / name).exists():
            shutil.copy(of / name, folder)
    items = load_items(of)
    users = events["user"].combine_chunks().dictionary_encode()
    number = users.indices.to_numpy()
    counts = np.bincount(number)
    enough, order = counts >= MIN_HISTORY, np.argsort(number, kind="stable")
    events = events.take(pa.array(order[enough[number[order]]]))
    ids = items["item_id"].take(pc.index_in(events["item"], items["key"].combine_chunks()))
    ratings = events["rating"].to_numpy() if "rating" in events.column_names else None
    table = history_table(
        np.flatnonzero(enough), ids.to_numpy(), counts[enough], users.dictionary.filter(pa.array(enough)),
        events["timestamp"].to_numpy(), ratings,
    )  # fmt: skip
    pq.write_table(table, folder / "histories.parquet")
