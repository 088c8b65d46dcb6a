"""Logits in the arena to the next level's beams; the validity constraint comes before top-k."""

from __future__ import annotations

from functools import partial

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.load import load_layout
from genrec.errors import InputError
from genrec.kv.arena import NO_KV, Arena
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, expand, learn_selection, zeros
from genrec.search.undecided import Int64, rows_of_parents, undecided
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor, excluded_of, logits_of_the_model
from genrec.steps.kv_handle import NO_PASS, beam_search_of, holding, read_handle, read_level
from genrec.steps.ticket import read_ticket
from genrec.steps.versioned import Versioned

NO_BEAMS = zeros(1)
_NOTHING_TO_SCORE: Tensors = {"codes": NO_PASS[None], "parents": NO_PASS[None]}


class BeamSearch(EachAlone):
    """kv, ticket, excluded and, after the first level, the beams so far -> the beams of the next level."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._indices = Versioned(settings, "beam_search", partial(load_validity, config=self._config))
        self.close = self._indices.close
        self._layout = load_layout(settings, self._config)
        self._arena = Arena(settings.arena)
        self._width = settings.beam_width
        learn_selection(self._indices.of(0), self._width)

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        handle, ticket = read_handle(request), read_ticket(request, self._config.max_prompt)
        index = self._indices.of(ticket.version)
        before = self._beams(request, index) if "level" in request else None
        level = 1 if before is None else read_level(request, self._config.levels) + 1
        if handle == NO_KV:
            return beams_answer(NO_BEAMS, level) | _NOTHING_TO_SCORE
        blocked = index.blocked(excluded_of(request))
        scored = None if before is None else undecided(index, level - 1, before.nodes)
        count = 1 if scored is None else len(scored)
        turn, last = beam_search_of(level), level == self._config.levels
        with holding(self._arena, handle, ticket, turn, last=last) as row, logits_of_the_model():
            if row.beams not in (None, count):
                raise InputError("nodes", f"leave {count} beams to score", f"{row.beams}: what decode scored")
            logits = self._layout.logits(row, level, count)
            beams = expand(Constraint(index, blocked), level, logits, before, self._width, scored)
            return beams_answer(beams, level) | _next_pass(index, level, beams, scored)

    def _beams(self, request: Tensors, index: ValidityIndex) -> Beams:
        """Beams as `expand` gave them; their numbers are checked because compiled code trusts them."""
        level = read_level(request, self._config.levels)
        paths = check_tensor(request, "paths", np.int64)
        nodes = check_tensor(request, "nodes", np.int32, len(paths))
        scores = check_tensor(request, "scores", np.float32, len(paths))
        if not 1 <= len(paths) <= self._width:
            raise InputError("paths", f"has {len(paths)} values", f"1 to {self._width}, the beam width")
        if int(nodes.min()) < 0 or int(nodes.max()) >= index.node_count(level):
            raise InputError(
                "nodes", f"span {nodes.min()} to {nodes.max()}", f"0 to {index.node_count(level) - 1}"
            )
        return Beams(paths, nodes, scores, np.zeros(len(paths), np.int32))


def _next_pass(index: ValidityIndex, level: int, beams: Beams, former: Int64 | None) -> Tensors:
    """What `decode` is to score: of undecided beams the last code, and where their parents' KV is."""
    if level == index.levels or not len(places := undecided(index, level, beams.nodes)):
        return _NOTHING_TO_SCORE
    codes = (beams.paths[places] % index.codebook_sizes[level - 1]).astype(np.int32)
    rows = beams.parents[places] if former is None else rows_of_parents(beams.parents, places, former)
    return {"codes": codes[None], "parents": rows.astype(np.int32)[None]}


def beams_answer(beams: Beams, level: int) -> Tensors:
    """Beams of `level` as the step's tensors, each with a leading 1."""
    return {
        "paths": beams.paths[None],
        "nodes": beams.nodes[None],
        "scores": beams.scores[None],
        "parents": beams.parents[None],
        "level": np.array([[level]], np.int32),
    }
