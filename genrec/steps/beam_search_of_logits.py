"""Beam search where logits come as a tensor: of the target `tensorrt`, whose KV never leaves the GPU."""

from __future__ import annotations

from functools import partial

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.errors import InputError
from genrec.search.constraint import Constraint
from genrec.search.expand import expand, learn_selection
from genrec.settings import Settings
from genrec.steps import Tensors, excluded_of, logits_of_the_model
from genrec.steps.beam_search import NO_BEAMS, BeamSearch, beams_answer
from genrec.steps.kv_handle import read_level
from genrec.steps.ticket import read_ticket
from genrec.steps.versioned import Versioned


class BeamSearchOfLogits(BeamSearch):
    """logits float32 [1, W, T], ticket, excluded and, after the first level, the beams so far -> the next beams."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._indices = Versioned(settings, "beam_search", partial(load_validity, config=self._config))
        self.close = self._indices.close
        self._width = settings.beam_width
        learn_selection(self._indices.of(0), self._width)

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        ticket = read_ticket(request, self._config.max_prompt)
        index = self._indices.of(ticket.version)
        before = self._beams(request, index) if "level" in request else None
        level = 1 if before is None else read_level(request, self._config.levels) + 1
        if ticket.prompt_length == 0:
            # Nothing was known of the history: the answer is popularity's
            return beams_answer(NO_BEAMS, level)
        ticket.check_deadline("beam_search")
        logits = np.asarray(request.get("logits"))
        wanted = (1, 1 if before is None else len(before), self._config.codebook_sizes[level - 1])
        if logits.dtype != np.float32 or logits.shape != wanted:
            raise InputError("logits", f"is {logits.dtype}{list(logits.shape)}", f"float32{list(wanted)}")
        blocked = index.blocked(excluded_of(request))
        with logits_of_the_model():
            beams = expand(Constraint(index, blocked), level, logits[0], before, self._width)
        return beams_answer(beams, level)
