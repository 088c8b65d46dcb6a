"""Histories cut into windows of at most max_history items and grouped into batches of like length."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence, Sized

import numpy as np

from genrec.errors import InputError
from training.data.histories import BLOCK_ITEMS, Histories, room_for


def cut_windows(
    offsets: np.ndarray, size: int, rng: np.random.Generator, ends: np.ndarray | None = None
) -> np.ndarray:
    """Windows [start, stop) over ragged histories `offsets` int64[U + 1] -> int64[w, 2], at most `size` long; of each
    history what is before its end, int64[U], where there are `ends`.

    A long history is cut at a random phase, anew each epoch, so that every item is at times far from a
    window's start; the newest `size` items always form a window too, because they are what serving sees.
    Windows of fewer than two items have no next item to learn and are left out.
    """
    windows, stops = array("q"), offsets[1:] if ends is None else ends
    for start, stop in zip(offsets[:-1].tolist(), stops.tolist(), strict=True):
        windows.extend((max(start, stop - size), stop))
        end = stop - int(rng.integers(1, size + 1))
        while end - start >= 2 and stop - start > size:
            windows.extend((max(start, end - size), end))
            end -= size
    spans = np.frombuffer(windows, np.int64).reshape(-1, 2)
    return spans[spans[:, 1] - spans[:, 0] >= 2]


def recent(offsets: np.ndarray, learnt: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Events `learnt` int64[n], ascending, of histories `offsets` int64[U + 1]: users, and events of each to be learnt
    in one window of `size`.

    They lie within half of it, so that the first of them have a history too.
    """
    users = np.searchsorted(offsets, learnt, "right") - 1
    of_users = np.split(learnt, np.flatnonzero(np.diff(users)) + 1)
    for user, events in zip(np.unique(users).tolist(), of_users, strict=True):
        while len(events):
            stop = int(np.searchsorted(events, events[0] + size // 2))
            yield user, events[:stop]
            events = events[stop:]


def batches(windows: np.ndarray, items: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Windows [w, 2 or more] -> shuffled batches of windows, each padded to no more than `items` items in all.

    Windows are sorted by length first (ties at random), so a batch's padding is the spread of few lengths.
    """
    lengths = windows[:, 1] - windows[:, 0]
    order = np.lexsort((rng.random(len(windows)), lengths))
    groups, start = [], 0
    for place in range(1, len(order) + 1):
        full = place < len(order) and (place + 1 - start) * lengths[order[place]] > items
        if place == len(order) or full:
            groups.append(windows[order[start:place]])
            start = place
    rng.shuffle(groups)
    return groups


def check_some(found: Sequence[Sized]) -> None:
    """Refuse batches that hold nothing: every event of every user is held out, or the first one. Raises InputError."""
    if not any(map(len, found)):
        raise InputError(
            "events", "are none that can be learnt", "users with two events that are not held out"
        )


def gather(rows: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Item rows of a batch of windows, padded right with -1: int64[total], int64[b, 2] -> int64[b, n]."""
    lengths = batch[:, 1] - batch[:, 0]
    place = np.arange(lengths.max())
    inside = place < lengths[:, None]
    return np.where(inside, rows[np.where(inside, batch[:, :1] + place, 0)], -1)


def training_rows(
    histories: Histories, rows_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of items as `rows_of` has them, without those it has not (-1): int64[kept], offsets int64[U + 1]."""
    kept, at, counts = room_for(len(histories.items)), 0, np.zeros(len(histories) + 1, np.int64)
    for start in range(0, len(histories.items), BLOCK_ITEMS):
        rows = rows_of(histories.items[start : start + BLOCK_ITEMS])
        known = rows >= 0
        ends = np.concatenate(([at], at + np.cumsum(known)))
        low, high = np.searchsorted(histories.offsets, (start + 1, start + len(rows) + 1))
        counts[low:high] = ends[histories.offsets[low:high] - start]
        stop = int(ends[-1])
        kept[at:stop], at = rows[known], stop
    return kept[:at], counts
