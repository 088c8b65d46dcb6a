"""Hidden states to whole semantic IDs, by beam search inside the draft head (NEZHA, Algorithm 3)."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.indices import load_indices
from genrec.draft.head import Drafter
from genrec.draft.options import FILE_NAME
from genrec.draft.search import draft
from genrec.errors import InputError
from genrec.search.expand import learn_selection
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor, excluded_of, logits_of_the_model
from genrec.steps.ticket import read_ticket
from genrec.steps.versioned import Versioned

LARGEST = 1e20  # a product with thousands of weights stays within a float32


class DraftBeam(EachAlone):
    """states, ticket, excluded -> paths (whole semantic IDs), scores, and `drafted` INT64[2].

    `drafted` = (candidates of the last level before verification, how many of them are no item). Settings say
    whether drafts are verified at `every` level or the `last`.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._drafter = Drafter.load(settings.artifact / "onnx" / FILE_NAME, self._config)
        self._width, self._mode = settings.beam_width, settings.verify
        self._shape = (1 + self._drafter.placeholders, self._config.hidden_size)
        self._indices = Versioned(settings, "draft_beam", partial(load_indices, config=self._config))
        self.close = self._indices.close
        learn_selection(self._indices.of(0)[0], self._width)
        # The first call compiles; no request should wait for that.
        draft(self._mode, self._drafter, np.zeros(self._shape, np.float32), *self._indices.of(0), self._width)

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        ticket = read_ticket(request, self._config.max_prompt)
        rows, size = self._shape
        states = check_tensor(request, "states", np.float32, most=rows * size)
        index, valid = self._indices.of(ticket.version)
        blocked = index.blocked(excluded_of(request))
        ticket.check_deadline("draft_beam")
        if ticket.prompt_length == 0:
            return _answer(np.zeros(1, np.int64), np.zeros(1, np.float32), 0, 0)
        if states.size != rows * size:
            raise InputError("states", f"has {states.size} values", f"{rows} x {size}")
        if (
            largest := float(np.abs(states).max())
        ) > LARGEST:  # what no model gives makes logits that are no numbers
            raise InputError("states", f"has {largest:g}", f"magnitudes up to {LARGEST:g}")
        with logits_of_the_model():
            found = draft(
                self._mode,
                self._drafter,
                states.reshape(rows, size),
                index,
                valid,
                self._width,
                blocked,
            )
        metrics.DRAFT_BEAMS.add(found.candidates - found.lost, verdict="valid")
        metrics.DRAFT_BEAMS.add(found.lost, verdict="lost")
        return _answer(found.semantic_ids, found.scores, found.candidates, found.lost)


def _answer(ids: NDArray[np.int64], scores: NDArray[np.float32], candidates: int, lost: int) -> Tensors:
    return {
        "paths": ids[None],
        "scores": scores[None],
        "drafted": np.array([[candidates, lost]], np.int64),
    }
