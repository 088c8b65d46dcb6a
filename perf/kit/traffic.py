"""The load of a benchmark: real histories, and times of arrival that do not wait for answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.models.prompt import prompt_of
from genrec.settings import MOST_VALUES

Histories = list[NDArray[np.int64]]
Seconds = NDArray[np.float64]


def histories(artifact: Path, count: int, seed: int = 0) -> Histories:
    """Up to `count` histories of different users, shuffled: as much as a request may have, without the last item, which
    is the test item.

    Without histories.parquet, `count` histories of random catalogue items, as long as the model reads.
    Raises InputError, ArtifactError.
    """
    if count < 1:
        raise InputError("histories", f"is {count}", "at least 1")
    draw = np.random.default_rng(seed)
    path = artifact / "histories.parquet"
    if not path.is_file():
        return _random_histories(artifact, count, draw)
    try:
        column = pq.read_table(path, columns=["items"])["items"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(path, f"not readable: {error}") from error
    rows = draw.permutation(len(column))
    found = (np.array(column[int(row)].as_py()[:-1][-MOST_VALUES:], np.int64) for row in rows)
    kept = [history for history, _ in zip((h for h in found if len(h)), range(count), strict=False)]
    if not kept:
        raise ArtifactError(path, "no history of two items or more")
    return kept


def _random_histories(artifact: Path, count: int, draw: np.random.Generator) -> Histories:
    items = pq.read_table(check_regular(artifact / "catalogue.parquet"), columns=["item_id"])[
        "item_id"
    ].to_numpy()
    length = load_config(artifact).max_history
    return [draw.choice(items, length).astype(np.int64) for _ in range(count)]


def prompts(artifact: Path, requests: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Tokens int64[1, S] and length int64[1] of real histories that have a known item.

    Raises InputError, and ArtifactError where none has.
    """
    config, catalogue = load_config(artifact), load_catalogue(artifact, load_config(artifact))
    found = []
    for history in histories(artifact, 4 * requests, seed):
        rows = catalogue.rows_of(history)
        rows = rows[rows >= 0][-config.max_history :]
        if len(rows):
            tokens = prompt_of(config, catalogue.codes[rows] + np.array(config.code_offsets)).astype(np.int64)
            found.append((tokens[None], np.array([len(tokens)])))
    if not found:
        raise ArtifactError(artifact / "histories.parquet", "no history has an item of the catalogue")
    return found[:requests]


def poisson(rate: float, count: int, seed: int = 0) -> Seconds:
    """`count` arrivals of a Poisson process of `rate` per second: float64[count], seconds, ascending."""
    _check(rate, count)
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum()


def bursts(rate: float, count: int, size: int) -> Seconds:
    """`count` arrivals in bursts of `size` at the same instant, each once so many have gathered at `rate` a second."""
    _check(rate, count)
    if size < 1:
        raise InputError("burst", f"is {size}", "at least 1")
    gathered: Seconds = np.minimum((np.arange(count) // size + 1) * size, count) / rate
    return gathered


def given(milliseconds: Sequence[float]) -> Seconds:
    """Arrivals from a list of milliseconds since the start, in any order."""
    times = np.sort(np.asarray(milliseconds, np.float64)) / 1000
    if not len(times) or not np.isfinite(times).all() or times[0] < 0:
        raise InputError("arrivals", "are empty, negative or no numbers", "milliseconds since the start")
    return times


def _check(rate: float, count: int) -> None:
    if not rate > 0:
        raise InputError("rate", f"is {rate}", "more than 0 requests per second")
    if count < 1:
        raise InputError("requests", f"is {count}", "at least 1")
