"""Candidates to the scores of an HSTU ranker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest, load_hstu_executors
from genrec.errors import InputError
from genrec.rank.hstu import CODES, CONFIG, FEATURE, ITEM, LIMIT, RATING, RATINGS, TIME, HstuConfig
from genrec.rank.hstu_weights import HstuWeights
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, answer_each, check_tensor
from genrec.steps.candidates import count_ranking
from genrec.steps.followed_deltas import FollowedDeltas
from genrec.steps.score_candidates import NOTHING
from genrec.steps.ticket import read_ticket


class ScoreEvents:
    """In the place of `ScoreCandidates`: tokens, ticket, owner, candidates, codes, plan -> scores, reuse, delta.

    A request reads the ranker once, and ends with it, whatever delta comes meanwhile.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = HstuConfig.load(settings.artifact / "model" / CONFIG)
        self._executor_of = load_hstu_executors(settings)
        self._followed = FollowedDeltas(settings, self._load)
        self.close = self._followed.close

    def _load(self, weights: HstuWeights) -> HstuExecutor:
        executor = self._executor_of(weights)
        executor.rehearse()
        return executor

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        return answer_each(requests, self._score)

    def _score(self, request: Tensors) -> Tensors:
        ticket = read_ticket(request, self._config.longest)
        ticket.check_deadline("score_candidates")
        delta, executor = self._followed.current
        if not ticket.prompt_length:
            return {**NOTHING, "delta": np.array([[delta]])}
        scores, reuse = executor.scores(self._read(request, ticket.prompt_length))
        if not np.isfinite(scores).all():
            raise InputError("scores", "have NaN or infinite values", "finite ones: look at the weights")
        count_ranking("user", reuse)
        return {
            "scores": scores[None],
            "reuse": np.array([reuse], np.int64),
            "delta": np.array([[delta]]),
        }

    def _read(self, request: Tensors, length: int) -> HstuRequest:
        c = self._config
        tokens = _rows(request, "tokens", c.token_size, c.longest)
        if len(tokens) < length:
            raise InputError("tokens", f"are {len(tokens)}", f"{length}, as ticket says")
        tokens = tokens[:length]
        limits = {ITEM: c.items, RATING: RATINGS, FEATURE: c.features, TIME: LIMIT - 1}
        for column in range(c.token_size):
            _check_range("tokens", tokens[:, column], limits.get(column, c.code_rows - 1))
        if (np.diff((tokens[:, FEATURE] > 0).astype(np.int8)) > 0).any():
            raise InputError("tokens", "have a feature behind an event", "features first")
        candidates = _rows(request, "candidates", 2, MOST_CANDIDATES)
        codes = _rows(request, "codes", c.token_size - CODES, MOST_CANDIDATES)
        if len(codes) != len(candidates):
            raise InputError("codes", f"are of {len(codes)} items", f"{len(candidates)}, as candidates")
        _check_range("candidates", candidates[:, 0], c.items)
        _check_range("candidates", candidates[:, 1], LIMIT - 1)
        _check_range("codes", codes, c.code_rows - 1)
        rows = np.concatenate((candidates[:, :1], codes), 1)
        named, user = (int(x) for x in check_tensor(request, "owner", np.int64, 2))
        return HstuRequest(user if named else None, tokens, rows, int(candidates[0, 1]))


def _rows(request: Tensors, field: str, each: int, most: int) -> NDArray[np.int32]:
    """int32[n, each]."""
    values = check_tensor(request, field, np.int32)
    if not len(values) or len(values) % each or len(values) > each * most:
        raise InputError(field, f"has {len(values)} values", f"{each} for each of 1 to {most}")
    return values.reshape(-1, each)


def _check_range(field: str, values: NDArray[np.int32], most: int) -> None:
    if not 0 <= int(values.min()) <= int(values.max()) <= most:
        raise InputError(field, f"span {values.min()} to {values.max()}", f"0 to {most}")
