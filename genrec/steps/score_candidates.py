"""Candidates to scores, over KV of user and items that the pool has or this step computes (BAT, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.engine.load_ranker import chosen_prefix, load_rank_executors
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest, Scored
from genrec.errors import InputError
from genrec.nodes.item_store import ItemStore
from genrec.nodes.mooncake import TRAILER
from genrec.nodes.node_share import NodeShare
from genrec.pool.owner import Owner
from genrec.rank.item_tokens import DistinctItems
from genrec.rank.options import MOST_CANDIDATES, ORDERS, USUAL_CANDIDATES, RankerConfig
from genrec.schedule.items_ahead import ItemsAhead
from genrec.schedule.relay import PARTS, PATIENCE
from genrec.schedule.shard import Shard
from genrec.settings import Settings
from genrec.steps import Tensors, check_tensor
from genrec.steps.prompts import check_range, read_prompt, spans, warm_up
from genrec.steps.scores_later import Ranking, ScoresLater
from genrec.steps.ticket import Ticket
from genrec.steps.versioned import Versioned


class ScoreCandidates(ScoresLater[RankExecutor]):
    """Scores with the discriminant ranker. Model deltas (HSTU only) do not apply."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._options = RankerConfig.of(settings.artifact, settings.target)
        self._longest = self._options.longest_history(self._config)
        self._store = _item_store(settings, self._options)
        executors = load_rank_executors(settings, self._config, self._store)
        for executor in executors:
            for each in filter(None, (executor, executor.one_core)):
                warm_up(spans(self._config)[:1], partial(self._try, each))
            if executor.ahead:
                tokens = np.zeros(min(2 * PARTS[-1], self._longest), np.int32)
                executor.ahead.rehearse(tokens, len(tokens) // 2)
        step = self._options.history_step(self._config)
        most = executors[0].most if chosen_prefix(settings, self._options) == "split" else 1
        for executor in executors:
            if most > 1:
                executor.together([self._nobodys(spans(self._config)[0])] * 2)
                executor.rehearse(USUAL_CANDIDATES)
            executor.rehearse_users()
        if self._store:
            self._store.start()
        super().__init__(settings, [_always(executor) for executor in executors], step, most)
        self._ahead = self._items_ahead(settings, executors[0])

    def _items_ahead(self, settings: Settings, executor: RankExecutor) -> ItemsAhead | None:
        """None where no ranking would reuse them."""
        reused = chosen_prefix(settings, self._options) not in ("recompute", "user")
        if settings.pool_fill == "none" or not reused or not executor.items.places:
            return None
        self._versions = Versioned(
            settings, "score_candidates", lambda folder: DistinctItems.load(folder, self._config)
        )
        batch_s, shard = settings.rank_budget_ms / 1e3 * PATIENCE, None
        if self._store and settings.pool:
            room = (settings.store_mb << 20) // (executor.items.bytes + TRAILER)
            shard = Shard(
                self._store, NodeShare(settings.node, settings.nodes), settings.pool, room, self._relay.cost,
                self._scheduler, executor.items.tokens, batch_s,
            )  # fmt: skip
        items = ItemsAhead(executor, self._scheduler, lambda: self._versions.latest, batch_s, shard)
        items.start()
        return items

    def close(self) -> None:
        """See `ScoresLater.close`."""
        if self._ahead:
            self._ahead.close()
            self._versions.close()
        super().close()
        if self._store:
            self._store.close()

    def read_user(self, request: Tensors) -> tuple[NDArray[np.int32], Ticket]:
        """See `ScoresLater.read_user`: int32[S]."""
        tokens, ticket = read_prompt(request, self._config, self._longest)
        return tokens[: ticket.prompt_length], ticket

    def read_ranking(
        self, request: Tensors, owner: Owner, tokens: NDArray[np.int32], deadline_s: float | None
    ) -> Ranking:
        """See `ScoresLater.read_ranking`."""
        candidates = self._rows(request, "candidates", self._options.item_tokens)
        codes = self._rows(request, "codes", self._config.levels)
        if len(codes) != len(candidates):
            raise InputError("codes", f"are of {len(codes)} items", f"{len(candidates)}, as candidates")
        order, keep_user, keep_items = (int(x) for x in check_tensor(request, "plan", np.int64, 3))
        if not 0 <= order < len(ORDERS) or ORDERS[order] not in (*self._options.orders, "whole"):
            known = [ORDERS.index(each) for each in (*self._options.orders, "whole")]
            raise InputError("plan", f"says order {order}", ", ".join(map(str, known)))
        came_ns = owner.came_ns if owner.named else None
        asked = RankRequest(owner.whose, tokens, candidates, codes, deadline_s, came_ns)
        plan = RankPlan(ORDERS[order], bool(keep_user), bool(keep_items))

        seen = partial(self._see, len(tokens), candidates)
        return Ranking(tokens, candidates.size, plan.order, (asked, plan), seen)

    def joins(self, first: tuple[RankRequest, RankPlan], other: tuple[RankRequest, RankPlan]) -> bool:
        """Those in order `split`, whose items are kept or are not."""
        (_, plan), (_, theirs) = first, other
        return plan.order == theirs.order == "split" and plan.keep_items == theirs.keep_items

    def score(self, executor: RankExecutor, asked: Sequence[tuple[RankRequest, RankPlan]]) -> list[Scored]:
        """See `ScoresLater.score`."""
        return executor.together(asked) if len(asked) > 1 else [executor.scores(*asked[0])]

    def _see(self, user_tokens: int, candidates: NDArray[np.int32]) -> None:
        if self._ahead:
            self._ahead.see(user_tokens, candidates)

    def _rows(self, request: Tensors, field: str, each: int) -> NDArray[np.int32]:
        """int32[C, each]."""
        values = check_tensor(request, field, np.int32)
        if not len(values) or len(values) % each or len(values) > each * MOST_CANDIDATES:
            raise InputError(
                field, f"has {len(values)} values", f"{each} for each of 1 to {MOST_CANDIDATES} items"
            )
        check_range(field, values, self._config.vocab_size - 1)
        return values.reshape(-1, each)

    def _try(self, executor: RankExecutor, span: int) -> None:
        executor.scores(*self._nobodys(span))

    def _nobodys(self, span: int) -> tuple[RankRequest, RankPlan]:
        """A ranking to rehearse."""
        candidates = np.zeros((MOST_CANDIDATES // 4, self._options.item_tokens), np.int32)
        codes = np.zeros((len(candidates), self._config.levels), np.int32)
        asked = RankRequest(None, np.zeros(span, np.int32), candidates, codes)
        return asked, RankPlan(self._options.orders[0], False, False)


def _item_store(settings: Settings, options: RankerConfig) -> ItemStore | None:
    """Of several nodes; joined in the background once rehearsals are over."""
    if settings.nodes == 1:
        return None
    from genrec.nodes.mooncake import Mooncake  # a package that one node does without

    join = partial(Mooncake, settings.store, settings.store_host, settings.store_mb << 20)
    return ItemStore(join, options.item_tokens)


def _always(executor: RankExecutor) -> Callable[[], tuple[int, RankExecutor]]:
    return lambda: (0, executor)
