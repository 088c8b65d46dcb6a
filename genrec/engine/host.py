"""Whole requests in one process: prefill, beam search and decode of every level, without a hop between them.

xGR, section 7. The same functions as the steps of `ensembles.recommend_staged`; a batch of requests goes through
every pass of the generator together, and work memory is used again from batch to batch (section 6.3).

A level of the search is three functions. A pass costs what it scores, so `_probe` names the few beams that were enough
lately, `_complete` makes the next beams of them, and `_check` says which beams had to be scored for the answer to be
that of all. Only where the probe left one of those out are they scored too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from genrec import metrics
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.batch import PassBatch
from genrec.engine.interface import Array, KnownPasses, Passes, Past, ResumePasses, ShowPrompt
from genrec.kv.layout import KV_TYPES
from genrec.models.config import ModelConfig
from genrec.search.bound import WORTH, NeededBeams, at_least, best_of, drop_unscored, floor_of
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, expand, zeros
from genrec.search.known import Known, known_beams
from genrec.search.scratch import Scratch
from genrec.search.undecided import LEAST, Int64, pass_size, pass_sizes, undecided

_NONE = np.empty(0, np.int64)
ENDLESS = sys.maxsize  # a beam width that no beams fill


class _Level(NamedTuple):
    """What the search of a level starts from; every list has an entry per request of the batch."""

    number: int
    constraints: list[Constraint]
    beams: list[Beams]  # of the level before
    undecided: list[Int64]  # places of those that are no items yet
    reachable: list[Int64]  # of these, those that score enough to matter to the answer


class HostExecutor:
    """See `genrec.engine.interface.Executor`; one per stream."""

    captures, captured = False, 0

    def __init__(self, passes: Passes, config: ModelConfig, width: int, kv_type: str) -> None:
        self._passes, self._config = passes, config
        self._width, self._kv_type = width, KV_TYPES[kv_type]
        self._scratch, self._needed = Scratch(), NeededBeams()
        self.resumes = isinstance(passes, ResumePasses) and passes.resumes
        # Of two codes one pass scores all that a pass can
        self._decodes_all = config.levels > 2 and isinstance(passes, KnownPasses) and passes.decodes_all

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], every_beam: bool = False,
        prompts: ShowPrompt | None = None, pasts: Sequence[Past] = (),
    ) -> list[Beams]:  # fmt: skip
        """See `Executor.answers`. `every_beam` scores all beams, needed or not: for rehearsals and comparisons."""
        batch = self._new_batch()
        logits, nothing = batch.prefill(tokens, lengths, pasts), [None] * len(tokens)
        beams = self._expand(1, constraints, nothing, nothing, logits)
        if prompts:  # not of logits that are no numbers: what is kept is read again and again
            for row in range(len(tokens)):
                prompts(row, partial(batch.bring, row), logits[row, 0])
        levels = range(2, self._config.levels + 1)
        if every_beam:
            for number in levels:
                scored = [np.arange(len(found)) for found in beams]
                beams = self._expand(number, constraints, beams, scored, batch.score(number, beams, scored))
        elif known := self._known(constraints):
            beams = self._search_known(known, constraints, beams, batch)
        else:
            for number in levels:
                beams = self._search(self._level(number, constraints, beams), batch)
        return [found.copy() for found in beams]  # an answer outlives the scratch

    def rehearse(self, rows: int, span: int, valid: ValidityIndex, past: Past | None = None) -> None:
        """See `Executor.rehearse`."""
        if past:
            self.answers(np.zeros((1, 2), np.int64), np.array([2]), [Constraint(valid)], pasts=[past])
        tokens, lengths = np.zeros((rows, span), np.int64), np.ones(rows, np.int64)
        self.answers(tokens, lengths, [Constraint(valid)] * rows, every_beam=True)
        batch = self._new_batch()
        batch.prefill(tokens, lengths)
        for size in pass_sizes(self._width)[:-1]:
            for number in range(2, self._config.levels + 1):
                batch.score(number, [zeros(size)] * rows, [np.arange(size)] * rows)
        if self._decodes_all and rows == 1:
            for size in pass_sizes(max(self._width, LEAST)):
                same = [np.zeros(size, np.int64)] * (self._config.levels - 1)
                batch.score_all(Known(same, same, same[1:]))

    def _new_batch(self) -> PassBatch:
        self._scratch.clear()
        return PassBatch(self._passes, self._config, self._width, self._kv_type, self._scratch)

    def _known(self, constraints: list[Constraint]) -> Known | None:
        """Of a request that is alone in its batch, the beams that one pass can score."""
        alone = self._decodes_all and len(constraints) == 1
        return known_beams(constraints[0], self._width) if alone else None

    def _search_known(
        self, known: Known, constraints: list[Constraint], beams: list[Beams], batch: PassBatch
    ) -> list[Beams]:
        """Beams of the last level, whose ancestors one pass scores."""
        metrics.BEAMS.add(sum(map(len, known.nodes)), kind="scored")
        for number, (nodes, logits) in enumerate(zip(known.nodes, batch.score_all(known), strict=True), 2):
            metrics.BEAMS.add(len(beams[0]), kind="kept")
            places = self._undecided(number - 1, constraints, beams)
            rows = np.searchsorted(nodes, beams[0].nodes[places[0]])  # some may have left: they cannot be
            beams = self._expand(number, constraints, beams, places, logits[None, rows])
        return beams

    def _search(self, level: _Level, batch: PassBatch) -> list[Beams]:
        """Beams of a level, one pass where the probe is enough and a second one where it is not."""
        metrics.BEAMS.add(sum(map(len, level.beams)), kind="kept")
        probe = self._probe(level)
        partial = max(map(len, probe)) < max(map(len, level.reachable))
        before = batch.snapshot(level.number) if partial else None
        found = self._complete(level, probe, batch)
        needed, scored = self._check(level, found), [len(few) for few in probe]
        # The probe is of the likeliest: it has all that are needed unless these are more.
        if before and any(len(all_) > few for all_, few in zip(needed, scored, strict=True)):
            scored = [max(len(all_), few) for all_, few in zip(needed, scored, strict=True)]
            batch.restore(before)
            found = self._complete(level, needed, batch)
            needed = self._check(level, found)
        most: dict[int, int] = {}  # of the pass: a probe is too small where it is for one of its requests
        for constraint, places in zip(level.constraints, needed, strict=True):
            most[constraint.wanted] = max(most.get(constraint.wanted, 0), len(places))
        for wanted, count in most.items():
            self._needed.learn(level.number, wanted, count)
        metrics.BEAMS.add(sum(scored), kind="scored")
        return found

    def _level(self, number: int, constraints: list[Constraint], beams: list[Beams]) -> _Level:
        undecided = self._undecided(number - 1, constraints, beams)
        floors = self._floors(constraints, beams, undecided, ENDLESS)
        return _Level(number, constraints, beams, undecided, self._at_least(beams, undecided, floors))

    def _probe(self, level: _Level) -> list[Int64]:
        """Of the beams in reach, the likeliest, as many as a pass needed lately; all where that is not many fewer."""
        asks = zip(level.constraints, level.reachable, strict=True)
        few = max(self._needed.expect(level.number, each.wanted, len(places)) for each, places in asks)
        few = pass_size(few, self._width)
        if few > WORTH * max(map(len, level.reachable)):
            return level.reachable
        pairs = zip(level.beams, level.reachable, strict=True)
        return [best_of(*each, few, self._scratch) for each in pairs]

    def _check(self, level: _Level, found: list[Beams]) -> list[Int64]:
        """Of the beams in reach, those that can matter to the beams found."""
        floors = self._floors(
            level.constraints, found, self._undecided(level.number, level.constraints, found), self._width
        )
        return self._at_least(level.beams, level.reachable, floors)

    def _complete(self, level: _Level, scored: list[Int64], batch: PassBatch) -> list[Beams]:
        """Beams of the level that come of items and of the beams `scored`, by one pass over these."""
        rows = zip(level.beams, level.undecided, scored, strict=True)
        pairs = [drop_unscored(*each, self._scratch) for each in rows]
        beams, places = [each for each, _ in pairs], [each for _, each in pairs]
        logits = batch.score(level.number, beams, places)
        return self._expand(level.number, level.constraints, beams, places, logits)

    def _expand(
        self, number: int, constraints: list[Constraint], beams: list[Beams] | list[None],
        scored: list[Int64] | list[None], logits: Array,
    ) -> list[Beams]:  # fmt: skip
        """`expand` for every request; a row of logits is padded to the longest of the batch."""
        rows = zip(constraints, beams, scored, logits, strict=True)
        return [
            expand(constraint, number, row[: 1 if places is None else len(places)], before, self._width, places,
                   self._scratch)
            for constraint, before, places, row in rows
        ]  # fmt: skip

    def _undecided(self, number: int, constraints: list[Constraint], beams: list[Beams]) -> list[Int64]:
        """Places of the beams of a level that are no items yet."""
        if number == self._config.levels:
            return [_NONE for _ in beams]
        pairs = zip(constraints, beams, strict=True)
        return [undecided(each.valid, number, found.nodes, self._scratch) for each, found in pairs]

    def _floors(
        self, constraints: list[Constraint], beams: list[Beams], undecided: list[Int64], width: int
    ) -> list[float]:
        rows = zip(constraints, beams, undecided, strict=True)
        return [floor_of(found, places, width, each.wanted, self._scratch) for each, found, places in rows]

    def _at_least(self, beams: list[Beams], places: list[Int64], floors: list[float]) -> list[Int64]:
        return [at_least(*each, self._scratch) for each in zip(beams, places, floors, strict=True)]
