"""The graphs of a ranker through OpenVINO: entries of users and items, and discriminant tokens over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.engine.interface import Array, HstuPasses, RankPasses, Split, UserName
from genrec.engine.openvino import rows_of_calls
from genrec.engine.openvino_graphs import RANK_TOGETHER, RANKINGS, OpenVinoGraphs, Stream
from genrec.models.config import ModelConfig
from genrec.rank.hstu import HstuConfig
from genrec.rank.hstu_weights import CODES_OF_ITEMS, HstuWeights
from genrec.settings import Settings


class OpenVinoRanker(Stream):
    """See `genrec.engine.interface.RankPasses`. One at a time per object."""

    def __init__(self, graphs: OpenVinoGraphs, config: ModelConfig) -> None:
        super().__init__(graphs)
        self._config = config
        self.captured = 0
        self.most = RANKINGS if graphs.has(RANK_TOGETHER) else 1

    def rehearse(self, candidates: int) -> None:
        """See `RankPasses.rehearse`: no shape is slow the first time."""

    def keep(self, name: UserName, user: Array) -> None:
        """See `RankPasses.keep`: none is."""

    def hold(self, items: Array) -> None:
        """See `RankPasses.hold`: nothing is copied."""

    def entries(self, tokens: Array, kv: Sequence[Array]) -> None:
        """See `RankPasses.entries`."""
        for rows in rows_of_calls(tokens):
            self._infer("rank_prefill", [tokens[rows]], [each[rows] for each in kv])

    def extend(self, tokens: Array, past: int, kv: Sequence[Array], new: Sequence[Array]) -> None:
        """See `RankPasses.extend`."""
        if self._graphs.writes_scores:  # of all keys, whatever lies behind the past
            kv = [np.ascontiguousarray(each[:, :, :past]) for each in kv]
        self._infer("extend", [tokens, np.array([past]), *kv], new)

    def split(self, items: Array, rankings: Sequence[Split]) -> list[NDArray[np.float32]]:
        """See `RankPasses.split`. Rows that fewer candidates than others' leave over are computed and not read."""
        lengths = np.array([each.length for each in rankings])
        if len(rankings) == 1:
            rows, user = rankings[0].rows, rankings[0].user
            # OpenVINO's own nodes would copy what they need of an entry.
            kv = [user[:, n] for n in range(user.shape[1])] if self._graphs.writes_scores else [user]
            return [self._states("rank_split", len(rows), [*self._table(items, rows), lengths, *kv])]
        most = max(len(each.rows) for each in rankings)
        rows = np.array([np.resize(each.rows, most) for each in rankings], np.int64)
        users = [*rankings, *[rankings[0]] * (self.most - len(rankings))]  # a graph has so many, read or not
        states = np.empty((*rows.shape, self._config.hidden_size), np.float32)
        self._infer(RANK_TOGETHER, [items, rows, lengths, *(each.user for each in users)], [states])
        return [each[: len(of.rows)] for each, of in zip(states, rankings, strict=True)]

    def user_first(self, candidates: Array, length: int, user: Sequence[Array]) -> NDArray[np.float32]:
        """See `RankPasses.user_first`."""
        return self._states("rank_user", len(candidates), [candidates[None], np.array([length]), *user])

    def item_first(self, tokens: Array, items: Array, rows: Array) -> NDArray[np.float32]:
        """See `RankPasses.item_first`."""
        return self._states("rank_item", len(rows), [tokens, *self._table(items, rows)])

    def _table(self, items: Array, rows: Array) -> tuple[Array, Array]:
        """Our operations read rows where they lie; nodes of OpenVINO would first copy the whole table."""
        if self._graphs.writes_scores:
            items, rows = items[rows], np.arange(len(rows))
        return items, rows[None].astype(np.int64)

    def _states(self, name: str, count: int, inputs: list[Array]) -> NDArray[np.float32]:
        states = np.empty((1, count, self._config.hidden_size), np.float32)
        self._infer(name, inputs, [states])
        return states[0]


def load_rankers(folder: Path, config: ModelConfig, kv_type: str, settings: Settings) -> list[RankPasses]:
    """The passes of the ranker built in `folder`, once per stream; `threads` (0: all cores) are shared by streams."""
    graphs = OpenVinoGraphs(folder, kv_type, settings.threads, settings.streams)
    return [OpenVinoRanker(graphs, config) for _ in range(settings.streams)]


class OpenVinoHstu:
    """See `genrec.engine.interface.HstuPasses`. One at a time per object."""

    def __init__(self, graphs: OpenVinoGraphs, config: HstuConfig, weights: HstuWeights) -> None:
        self._config, kind = config, config.kind
        tables = {name: weights.arrays[name] for name in kind.tables}
        read = {name: values for name, values in weights.arrays.items() if name != CODES_OF_ITEMS}
        self._user, self._rank = (graphs.request_with(name, read, tables) for name in kind.graphs)
        self._weights = weights  # requests read them where they lie
        self.captured = 0

    def rehearse(self, candidates: int) -> None:
        """See `HstuPasses.rehearse`: no shape is slow the first time."""

    def hold(self, memory: Array) -> None:
        """See `HstuPasses.hold`: nothing is copied."""

    def user(
        self, tokens: Array, marks: Array, past_marks: Array, past: Sequence[Array], new: Sequence[Array]
    ) -> None:
        """See `HstuPasses.user`."""
        self._user.infer("", [tokens, marks, past_marks, *past], new)

    def logits(self, asked: Sequence[Array], marks: Array, user: Sequence[Array]) -> NDArray[np.float32]:
        """See `HstuPasses.logits`."""
        found = np.empty((len(asked[-1]), self._config.outputs), np.float32)
        self._rank.infer("", [*asked, marks, *user], [found])
        return found


def load_hstu(
    folder: Path, config: HstuConfig, kv_type: str, threads: int
) -> Callable[[HstuWeights], HstuPasses]:
    """What makes passes of weights, by the graphs of a kind built in `folder`: in float32 whatever the type of the
    generator's KV is. Raises ArtifactError, as what it returns does.
    """
    graphs = OpenVinoGraphs(folder, kv_type, threads)
    graphs.hints["INFERENCE_PRECISION_HINT"] = "f32"
    return partial(OpenVinoHstu, graphs, config)
