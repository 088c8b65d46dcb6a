"""Users' events as the ragged batches of an HSTU ranker: of training, and of what is held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from genrec.nn.hstu import CANDIDATE, EVENT, FEATURE, Tokens
from genrec.nn.hstu_layout import Layout
from genrec.rank.hstu import clock_of
from training.data.windows import cut_windows, recent
from training.hstu.ratings import HELD_OUT, Ratings, held_of


class Sample(NamedTuple):
    """One sequence: a user, his events [start, stop) as history, and candidates.

    Candidate c is event `asked[c]`; it sees the first `seen[c]` events of the history, at the time of event `now[c]`,
    which is when its list was asked for. int64[C] each.
    """

    user: int
    start: int
    stop: int
    asked: np.ndarray
    seen: np.ndarray
    now: np.ndarray

    def size(self, features: int) -> int:
        """Tokens."""
        return features + self.stop - self.start + len(self.asked)


class Known(NamedTuple):
    """What the model is told of each of B samples, bool[B]: its user's features, its ratings, its times."""

    features: np.ndarray
    ratings: np.ndarray
    times: np.ndarray

    @classmethod
    def but(cls, unknown: float, samples: int, rng: np.random.Generator) -> Known:
        """Each is left out of a share `unknown` of the samples, as a request may leave it out."""
        return cls(*(rng.random((3, samples)) >= unknown))


def held_out_samples(
    ratings: Ratings, users: np.ndarray, last: np.ndarray | int, max_history: int
) -> list[Sample]:
    """Events of each of `users` as one list, those before the `last` newest; all see what came before them."""
    samples = []
    first, end = ratings.offsets[users], ratings.offsets[users + 1] - last
    for user, begin, stop, held in zip(
        *(each.tolist() for each in (users, first, end, held_of(end - first))), strict=True
    ):
        if held:
            asked = np.arange(stop - held, stop)
            start = max(begin, stop - held - max_history)
            seen, now = np.full(held, stop - held - start), np.full(held, stop - held)
            samples.append(Sample(user, start, stop - held, asked, seen, now))
    return samples


class TrainingSamples(Sequence[Sample]):
    """Windows over each user's events [offsets[u], ends[u]): every event is a candidate and, later on, history.

    Candidates come in lists of HELD_OUT, as those that are measured, and see what came before their list. A sample is
    made when it is asked for: all of them take several times the memory of the events.
    """

    def __init__(
        self, offsets: np.ndarray, ends: np.ndarray, max_history: int, rng: np.random.Generator
    ) -> None:
        self.spans = cut_windows(offsets, max_history, rng, ends)
        self.users = np.searchsorted(offsets, self.spans[:, 0], "right") - 1
        self.phases = rng.integers(HELD_OUT, size=len(self.spans))

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, at: int) -> Sample:  # type: ignore[override]
        start, stop = self.spans[at].tolist()
        phase, place = int(self.phases[at]), np.arange(stop - start)
        seen = np.maximum((place + phase) // HELD_OUT * HELD_OUT - phase, 0)
        return Sample(int(self.users[at]), start, stop, start + place, seen, start + seen)


def further_samples(ratings: Ratings, learnt: np.ndarray, max_history: int) -> list[Sample]:
    """Events `learnt` int64[n], ascending, as candidates in lists of HELD_OUT, in order of time; all that a user did
    before is history, and so are those of his lists before.
    """
    samples = []
    for user, asked in recent(ratings.offsets, learnt, max_history):
        start = max(int(ratings.offsets[user]), int(asked[-1]) - max_history)
        now = asked[np.arange(len(asked)) // HELD_OUT * HELD_OUT]
        samples.append(Sample(user, start, int(asked[-1]), asked, now - start, now))
    return samples


class Batches(Sequence[list[Sample]]):
    """Groups of about `tokens` tokens, shuffled by `rng`; lengths may differ, as nothing is padded."""

    def __init__(
        self, samples: Sequence[Sample], features: int, tokens: int, rng: np.random.Generator | None = None
    ) -> None:
        order = np.arange(len(samples)) if rng is None else rng.permutation(len(samples))
        self.samples, self.groups = samples, []
        begin, size = 0, 0
        for end, at in enumerate(order.tolist(), 1):
            size += samples[at].size(features)
            if size >= tokens or end == len(order):
                self.groups.append(order[begin:end])
                begin, size = end, 0

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, at: int) -> list[Sample]:  # type: ignore[override]
        return [self.samples[number] for number in self.groups[at].tolist()]


def tokens_of(ratings: Ratings, samples: Sequence[Sample], known: Known | None = None) -> Tokens:
    """What the model reads of samples; of all if `known` is None. Ratings of candidates are not among it.

    A feature that is unknown has no token. Unknown ratings are 0, and unknown times are all one.
    """
    known = known or Known.but(0.0, len(samples), np.random.default_rng(0))
    told = [row[row > 0] for row in ratings.features[[each.user for each in samples]]]
    widths = np.where(known.features, [len(row) for row in told], 0).tolist()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("item", "rating", "feature", "reach", "position",
                                                                "time", "group")}  # fmt: skip
    for number, (each, width) in enumerate(zip(samples, widths, strict=True)):
        count, asked = each.stop - each.start, len(each.asked)
        history = slice(each.start, each.stop)
        place, none = np.arange(count), np.zeros(asked, np.int64)
        of_user = np.zeros(width, np.int64)
        parts["item"] += [of_user, ratings.items[history] + 1, ratings.items[each.asked] + 1]
        parts["rating"] += [of_user, ratings.ratings[history] * known.ratings[number], none]
        parts["feature"] += [told[number][:width], np.zeros(count + asked, np.int64)]
        parts["reach"] += [np.full(width, width), width + place, width + each.seen]
        parts["position"] += [of_user, 1 + place, 1 + each.seen]
        times = np.concatenate((ratings.times[history], ratings.times[each.now]))
        begin = clock_of(times.min(), times.max())
        parts["time"] += [of_user, (np.maximum(times, begin) - begin) * known.times[number]]
        parts["group"] += [np.repeat((FEATURE, EVENT, CANDIDATE), (width, count, asked))]
    whole = {name: torch.from_numpy(np.concatenate(each)) for name, each in parts.items()}
    lengths = torch.tensor([each.size(width) for each, width in zip(samples, widths, strict=True)])
    layout = Layout.of(lengths, whole["reach"], whole["position"], whole["time"])
    return Tokens(layout, *(whole[name] for name in ("group", "item", "rating", "feature")))


def events_of(samples: Sequence[Sample]) -> np.ndarray:
    """The events that are asked for: int64[C], in the order of `tokens_of`."""
    return np.concatenate([each.asked for each in samples])
