"""Users' events as the ragged batches of an HSTU model of the next item: of training, and of places to ask at."""

from __future__ import annotations

import numpy as np
import torch

from genrec.nn.hstu_layout import Layout
from genrec.nn.hstu_next import Events
from genrec.rank.hstu import clock_of
from training.data.windows import cut_windows
from training.hstu_next.timed import Timed


def training_spans(timed: Timed, most: int, rng: np.random.Generator) -> np.ndarray:
    """Spans int64[w, 2] of at most `most` events, each of which has one behind it; all but the two newest are read.

    The two newest of a user are his validation and his test item.
    """
    return cut_windows(timed.offsets, most + 1, rng, timed.offsets[1:] - 2) - [0, 1]


def spans_before(timed: Timed, places: np.ndarray, most: int) -> np.ndarray:
    """Spans int64[m, 2] of the newest `most` of the first `cut` events, of places int64[m, 2] (user, cut)."""
    first = timed.offsets[places[:, 0]]
    stop = first + places[:, 1]
    return np.stack((np.maximum(first, stop - most), stop), 1)


def groups_of(spans: np.ndarray, tokens: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Spans in groups of about `tokens` events, shuffled by `rng`; lengths may differ, as nothing is padded."""
    spans = rng.permutation(spans)
    ends = np.cumsum(spans[:, 1] - spans[:, 0])
    return np.split(spans, np.flatnonzero(np.diff((ends - 1) // tokens)) + 1)


def places_in(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every event of spans int64[w, 2], one span after the other: its number, and its place in its span."""
    lengths = spans[:, 1] - spans[:, 0]
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(spans[:, 0], lengths) + place, place


def events_of(timed: Timed, spans: np.ndarray) -> Events:
    """What the model reads of spans int64[w, 2], w > 0: every event has one behind it, of which it is told the time."""
    at, place = places_in(spans)
    lengths = spans[:, 1] - spans[:, 0]
    begin = np.repeat(clock_of(timed.times[spans[:, 0]], timed.times[spans[:, 1]]), lengths)
    since, until = (np.maximum(timed.times[each], begin) - begin for each in (at, at + 1))
    marks = (torch.from_numpy(each) for each in (place, place, since))
    layout = Layout.of(torch.from_numpy(lengths), *marks)
    return Events(layout, torch.from_numpy(timed.rows[at]), torch.from_numpy(until - since))
