"""The beams' newest codes through the generator: logits of the next level, left in the arena."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.engine.load import load_engine
from genrec.errors import InputError
from genrec.kv.arena import NO_KV, Arena, Row
from genrec.kv.reorder import reorder_in_place
from genrec.search.undecided import pass_size
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor
from genrec.steps.kv_handle import NO_PASS, decode_of, holding, read_handle, read_level
from genrec.steps.prompts import spans, warm_up
from genrec.steps.ticket import read_ticket

Int32 = NDArray[np.int32]


class Decode(EachAlone):
    """kv, ticket, codes, parents, level -> kv, once the next level's logits are there."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._engine = load_engine(settings, self._config)
        self._arena = Arena(settings.arena)
        self._width = settings.beam_width
        warm_up(range(2, self._config.levels + 1), self._try)

    def _try(self, level: int) -> None:
        """Score a level with all beams over the shortest prompt, in a slot of its own."""
        span = spans(self._config)[0]
        region = self._arena.allocate(1, span)
        region.memory[:] = 0  # an earlier request's, else
        try:
            row = Row(region.memory, 1, span, 0)
            self._reorder(row, level - 1, np.zeros(self._width, np.int32))
            self._engine.decode(level, np.zeros(self._width, np.int64), span, row)
        finally:
            self._arena.release(region.handles[0])

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`. Each request's beams are a batch of their own already."""
        handle, ticket = read_handle(request), read_ticket(request, self._config.max_prompt)
        level = read_level(request, self._config.levels)
        codes = check_tensor(request, "codes", np.int32)
        parents = check_tensor(request, "parents", np.int32, len(codes))
        if handle != NO_KV:
            if np.array_equal(codes, NO_PASS):
                codes = parents = codes[:0]
            else:
                self._check(level, codes, parents)
            with holding(self._arena, handle, ticket, decode_of(level), beams=len(codes)) as row:
                if len(codes):
                    self._score(row, level, codes, parents)
        return {"kv": request["kv"]}

    def _check(self, level: int, codes: Int32, parents: Int32) -> None:
        size = self._config.codebook_sizes[level - 1]
        if not 1 <= len(codes) <= self._width or int(codes.min()) < 0 or int(codes.max()) >= size:
            have = f"are {len(codes)} from {codes.min(initial=0)} to {codes.max(initial=0)}"
            raise InputError("codes", have, f"1 to {self._width}, from 0 to {size - 1}")
        if parents[0] < 0 or parents[-1] >= self._width or (parents[1:] < parents[:-1]).any():
            raise InputError("parents", "are out of order or range", f"rising, 0 to {self._width - 1}")

    def _score(self, row: Row, level: int, codes: Int32, parents: Int32) -> None:
        """Run the pass for beams int32[W], of parents among those of the pass before."""
        if row.beams is not None and parents[-1] >= row.beams:
            limit = f"below {row.beams}, the beams of the pass before"
            raise InputError("parents", f"go up to {parents[-1]}", limit)
        padding = (0, pass_size(len(codes), self._width) - len(codes))
        self._reorder(row, level, np.pad(parents, padding, "edge"))
        self._engine.decode(level + 1, np.pad(codes, padding, "edge").astype(np.int64), row.length, row)

    def _reorder(self, row: Row, level: int, parents: Int32) -> None:
        """Let every beam's unshared KV be its parent's (xGR, section 5.1)."""
        layout = self._engine.layout
        for tensor in range(2 * self._config.num_hidden_layers):
            for earlier in range(level - 1):
                unshared = layout.unshared(row, tensor, earlier, self._width)
                reorder_in_place(unshared.reshape(self._width, -1), parents)
