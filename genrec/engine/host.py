"""Whole requests in one process: prefill, beam search and decode of every level, without a hop between them.

xGR, section 7. The same functions as the steps of `ensembles.recommend_staged`; a batch of requests goes through
every pass of the generator together, and work arrays are reused from batch to batch (section 6.3). A pass scores the
beams that it can tell apart (`genrec.search.undecided`) and, of these, those that can matter to the answer
(`genrec.search.bound`).
"""

from __future__ import annotations

import sys

import numpy as np

from genrec.catalogue.validity import ValidityIndex
from genrec.engine.batch import PassBatch
from genrec.engine.interface import Array, Constraint, Passes
from genrec.kv.layout import KV_TYPES
from genrec.models.config import ModelConfig
from genrec.search.bound import WORTH, Lately, above, best_of, floor_of, without
from genrec.search.expand import Beams, expand, zeros
from genrec.search.room import Room
from genrec.search.undecided import Int64, pass_size, pass_sizes, undecided

_NONE = np.empty(0, np.int64)
NEVER = sys.maxsize  # beams are never so many


class HostExecutor:
    """See `genrec.engine.interface.Executor`; one per stream."""

    most_blocked = np.iinfo(np.int32).max

    def __init__(self, passes: Passes, config: ModelConfig, width: int, kv_type: str) -> None:
        self._passes, self._config = passes, config
        self._width, self._kv_type = width, KV_TYPES[kv_type]
        self._room, self._lately = Room(), Lately()

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], every_beam: bool = False
    ) -> list[Beams]:
        """See `Executor.answers`. `every_beam` scores all beams, needed or not: for rehearsals and comparisons."""
        self._room.clear()
        batch = PassBatch(self._passes, self._config, self._width, self._kv_type, self._room)
        logits, nothing = batch.prefill(tokens, lengths), [None] * len(tokens)
        beams = self._expand(1, logits, nothing, nothing, constraints)
        for level in range(2, self._config.levels + 1):
            if every_beam:
                asked = [np.arange(len(found)) for found in beams]
                beams = self._expand(level, batch.score(level, beams, asked), beams, asked, constraints)
            else:
                beams = self._next(level, beams, constraints, batch)
        return beams

    def rehearse(self, rows: int, span: int, valid: ValidityIndex) -> None:
        """See `Executor.rehearse`."""
        tokens, lengths = np.zeros((rows, span), np.int64), np.ones(rows, np.int64)
        free = Constraint(valid, valid.blocked(np.array([-1], np.int32)))
        self.answers(tokens, lengths, [free] * rows, every_beam=True)
        self._room.clear()
        batch = PassBatch(self._passes, self._config, self._width, self._kv_type, self._room)
        batch.prefill(tokens, lengths)
        for size in pass_sizes(self._width)[:-1]:
            for level in range(2, self._config.levels + 1):
                batch.score(level, [zeros(size)] * rows, [np.arange(size)] * rows)

    def _next(
        self, level: int, beams: list[Beams], constraints: list[Constraint], batch: PassBatch
    ) -> list[Beams]:
        """Beams of `level`: the likeliest before are scored first, then all that can matter, if these are more."""
        still = self._undecided(level - 1, beams, constraints)
        asked = self._above(beams, still, _floors(beams, still, constraints, NEVER))
        few, many = self._lately_needed(level, asked, constraints), max(map(len, asked))
        if few > WORTH * many:
            few, first = many, asked
        else:
            first = [best_of(*each, few, self._room) for each in zip(beams, asked, strict=True)]
        held = batch.held(level) if few < many else None
        found = self._pass(level, beams, still, first, constraints, batch)
        floors = self._floors_after(level, found, constraints)
        needed = self._above(beams, asked, floors)
        if held and list(map(len, needed)) != list(map(len, self._above(beams, first, floors))):
            batch.back_to(held)
            found = self._pass(level, beams, still, needed, constraints, batch)
            needed = self._above(beams, needed, self._floors_after(level, found, constraints))
        for each, places in zip(constraints, needed, strict=True):
            self._lately.learn(level, each.wanted, len(places))
        return found

    def _lately_needed(self, level: int, asked: list[Int64], constraints: list[Constraint]) -> int:
        """Beams to score first, in a row of a batch."""
        pairs = zip(asked, constraints, strict=True)
        count = max(self._lately.needed(level, each.wanted, len(places)) for places, each in pairs)
        return pass_size(count, self._width)

    def _pass(
        self, level: int, beams: list[Beams], still: list[Int64], asked: list[Int64], constraints: list[Constraint],
        batch: PassBatch,
    ) -> list[Beams]:  # fmt: skip
        """Beams of `level` that come of items and of the beams `asked`."""
        pairs = [without(*each, self._room) for each in zip(beams, still, asked, strict=True)]
        kept, places = [each for each, _ in pairs], [each for _, each in pairs]
        return self._expand(level, batch.score(level, kept, places), kept, places, constraints)

    def _floors_after(self, level: int, found: list[Beams], constraints: list[Constraint]) -> list[float]:
        """What beams before had to score to matter to those found."""
        return _floors(found, self._undecided(level, found, constraints), constraints, self._width)

    def _above(self, beams: list[Beams], places: list[Int64], floors: list[float]) -> list[Int64]:
        return [above(*each, self._room) for each in zip(beams, places, floors, strict=True)]

    def _undecided(self, level: int, beams: list[Beams], constraints: list[Constraint]) -> list[Int64]:
        """Of every request, the places of the beams of `level` that are no items yet."""
        if level == self._config.levels:
            return [_NONE for _ in beams]
        pairs = zip(beams, constraints, strict=True)
        return [undecided(each.valid, level, found.nodes, self._room) for found, each in pairs]

    def _expand(
        self,
        level: int,
        logits: Array,
        beams: list[Beams] | list[None],
        asked: list[Int64] | list[None],
        constraints: list[Constraint],
    ) -> list[Beams]:
        last = level == self._config.levels  # the answer outlives the room
        return [
            expand(each.valid, level, scores[: 1 if places is None else len(places)], before, self._width, each.blocked,
                   room=None if last else self._room, asked=places)
            for scores, before, places, each in zip(logits, beams, asked, constraints, strict=True)
        ]  # fmt: skip


def _floors(beams: list[Beams], still: list[Int64], constraints: list[Constraint], width: int) -> list[float]:
    rows = zip(beams, still, constraints, strict=True)
    return [floor_of(found, places, width, each.wanted) for found, places, each in rows]
