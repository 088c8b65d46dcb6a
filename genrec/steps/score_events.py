"""Candidates to the scores of an HSTU ranker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest, load_hstu_executors
from genrec.engine.ranking import Scored
from genrec.errors import InputError
from genrec.pool.owner import Owner
from genrec.rank.hstu import CODES, FEATURE, ITEM, LIMIT, RATING, TIME
from genrec.rank.hstu_weights import HstuWeights
from genrec.rank.kinds import chosen_hstu
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import Settings
from genrec.steps import Tensors, check_tensor
from genrec.steps.followed_deltas import FollowedDeltas
from genrec.steps.prompts import check_range
from genrec.steps.scores_later import Ranking, ScoresLater
from genrec.steps.ticket import Ticket, read_ticket


class ScoreEvents(ScoresLater[HstuExecutor]):
    """Used instead of `ScoreCandidates`. The next delta is taken in between two requests."""

    def __init__(self, settings: Settings) -> None:
        self._config = chosen_hstu(settings.artifact, settings.ranker)
        self._executors_of = load_hstu_executors(settings, lambda: self._stream(0)[1])
        self._followed = FollowedDeltas(settings, self._load, self._config.kind)
        streams = range(len(self._followed.current[1]))
        super().__init__(settings, [partial(self._stream, number) for number in streams])

    def close(self) -> None:
        """Follow no more, and see `ScoresLater.close`."""
        self._followed.close()
        super().close()

    def _load(self, weights: HstuWeights) -> list[HstuExecutor]:
        executors = self._executors_of(weights)
        for executor in executors:
            executor.rehearse()
        return executors

    def _stream(self, number: int) -> tuple[int, HstuExecutor]:
        """What serves now, and the number of its last delta."""
        delta, executors = self._followed.current
        return delta, executors[number]

    def read_user(self, request: Tensors) -> tuple[NDArray[np.int32], Ticket]:
        """See `ScoresLater.read_user`: int32[U, token_size]."""
        c = self._config
        ticket = read_ticket(request, c.longest)
        if not ticket.prompt_length:
            return np.zeros((0, c.token_size), np.int32), ticket
        tokens = _rows(request, "tokens", c.token_size, c.longest)
        if len(tokens) < ticket.prompt_length:
            raise InputError("tokens", f"are {len(tokens)}", f"{ticket.prompt_length}, as ticket says")
        tokens = tokens[: ticket.prompt_length]
        limits = {ITEM: c.items, RATING: c.ratings, FEATURE: c.features, TIME: LIMIT - 1}
        for column in range(c.token_size):
            check_range("tokens", tokens[:, column], limits.get(column, c.code_rows - 1))
        if (np.diff((tokens[:, FEATURE] > 0).astype(np.int8)) > 0).any():
            raise InputError("tokens", "have a feature behind an event", "features first")
        return tokens, ticket

    def prefix_of(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """See `ScoresLater.prefix_of`."""
        return self._config.prefix(tokens)

    def read_ranking(
        self, request: Tensors, owner: Owner, tokens: NDArray[np.int32], deadline_s: float | None
    ) -> Ranking:
        """See `ScoresLater.read_ranking`."""
        c = self._config
        candidates = _rows(request, "candidates", 2, MOST_CANDIDATES)
        codes = _rows(request, "codes", c.token_size - CODES, MOST_CANDIDATES)
        if len(codes) != len(candidates):
            raise InputError("codes", f"are of {len(codes)} items", f"{len(candidates)}, as candidates")
        check_range("candidates", candidates[:, 0], c.items)
        check_range("candidates", candidates[:, 1], LIMIT - 1)
        check_range("codes", codes, c.code_rows - 1)
        rows = np.concatenate((candidates[:, :1], codes), 1)
        came_ns = owner.came_ns if owner.named else None
        asked = HstuRequest(owner.whose, tokens, rows, int(candidates[0, 1]), came_ns)
        computed = len(c.query(tokens, rows, asked.now).rows[0])

        return Ranking(c.prefix(tokens), computed, "user", asked)

    def score(self, executor: HstuExecutor, asked: Sequence[HstuRequest]) -> list[Scored]:
        """See `ScoresLater.score`."""
        return [executor.scores(request) for request in asked]


def _rows(request: Tensors, field: str, each: int, most: int) -> NDArray[np.int32]:
    """int32[n, each]."""
    values = check_tensor(request, field, np.int32)
    if not len(values) or len(values) % each or len(values) > each * most:
        raise InputError(field, f"has {len(values)} values", f"{each} for each of 1 to {most}")
    return values.reshape(-1, each)
