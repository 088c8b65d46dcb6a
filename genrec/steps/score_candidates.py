"""Candidates to scores, over KV of user and items that the pool has or this step computes (BAT, section 5).

Users' KV is computed ahead of rankings here too (RelayGR): two engines would fight for the cores.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.engine.load_ranker import chosen_prefix, load_rank_executors
from genrec.engine.pre_infer import PreInference
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest
from genrec.errors import GenrecError, InputError
from genrec.pool.held import Held
from genrec.pool.item_store import ItemStore
from genrec.rank.item_tokens import DistinctItems
from genrec.rank.options import MOST_CANDIDATES, ONLY_USER, OPTIONS, ORDERS, RankerConfig
from genrec.report import PreInferReport
from genrec.schedule.idle_items import IdleBatch
from genrec.schedule.items_ahead import ItemsAhead
from genrec.schedule.relay import PARTS, PATIENCE, Relay
from genrec.schedule.scheduler import Scheduler
from genrec.schedule.shard import Shard
from genrec.settings import Settings
from genrec.steps import Answer, Tensors, check_tensor
from genrec.steps.candidates import count_ranking
from genrec.steps.later import AnswersLater, Respond
from genrec.steps.prompts import read_prompt, spans, warm_up
from genrec.steps.ticket import Ticket
from genrec.steps.versioned import Versioned

log = logging.getLogger("genrec.score_candidates")
NOTHING: Tensors = {
    "scores": np.zeros((1, 1), np.float32),
    "reuse": np.zeros((1, 4), np.int64),
    "delta": np.zeros((1, 1), np.int64),  # none changes this ranker
}


class _Asked(NamedTuple):
    request: RankRequest
    plan: RankPlan
    ticket: Ticket
    respond: Respond


class ScoreCandidates(AnswersLater):
    """tokens, ticket, owner, candidates, codes, plan -> scores, the tokens that were reused, delta.

    A request is a pass of its own, since its KV lies where the pool has it. The queue refuses what cannot be in time.
    A plan of the user's entry alone is answered at once, without candidates: `reuse` is a `PreInferReport` then.
    """

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact)
        self._options = RankerConfig.load(settings.artifact / "model" / OPTIONS)
        self._longest = self._options.longest_history(self._config)
        self._store = _item_store(settings, self._options)
        executors = load_rank_executors(settings, self._config, self._store)
        for executor in executors:
            warm_up(spans(self._config)[:1], partial(self._try, executor))
            if executor.ahead and self._longest > PARTS[-1]:
                executor.ahead.rehearse(PARTS[-1], min(PARTS[-1], self._longest - PARTS[-1]))
        run = [partial(self._run, executor) for executor in executors]
        budget_s, ahead = settings.rank_budget_ms / 1e3, executors[0].ahead
        self._scheduler: Scheduler[_Asked | PreInference | IdleBatch]
        self._scheduler = Scheduler(run, 1, 0.0, 1, patience_s=budget_s)
        self._relay = Relay(ahead.jobs if ahead else None, self._scheduler, settings)
        self._ahead = self._items_ahead(settings, executors[0])

    def _items_ahead(self, settings: Settings, executor: RankExecutor) -> ItemsAhead | None:
        """None where no ranking would reuse them."""
        reused = chosen_prefix(settings, self._options) not in ("recompute", "user")
        if settings.pool_fill == "none" or not reused or not executor.item_places:
            return None
        self._versions = Versioned(
            settings, "score_candidates", lambda folder: DistinctItems.load(folder, self._config)
        )
        batch_s, shard = settings.rank_budget_ms / 1e3 * PATIENCE, None
        if self._store and settings.pool:
            room = (settings.store_mb << 20) // executor.item_bytes
            shard = Shard(
                self._store, Held(settings.node, settings.nodes), settings.pool, room, self._relay.cost,
                self._scheduler, executor.item_tokens, batch_s,
            )  # fmt: skip
        items = ItemsAhead(executor, self._scheduler, lambda: self._versions.latest, batch_s, shard)
        items.start()
        return items

    def submit(self, request: Tensors, respond: Respond) -> None:
        """See `AnswersLater.submit`."""
        try:
            tokens, ticket = read_prompt(request, self._config, self._longest)
            ticket.check_deadline("score_candidates")
            deadline_s = ticket.deadline_ns / 1e9 if ticket.deadline_ns else None
            if _order(request) == ONLY_USER:
                respond(self._pre_infer(request, tokens[: ticket.prompt_length], ticket, deadline_s))
                return
            if ticket.prompt_length:
                asked = self._read(request, tokens, ticket, respond)
                missing = self._relay.missing(asked.request.owner, asked.request.tokens)
                size = missing + asked.request.candidates.size
                self._scheduler.submit(asked, size, deadline_s)
                return
        except GenrecError as error:
            respond(error)
            return
        respond(NOTHING)

    def close(self) -> None:
        """Answer what is queued; then end the threads."""
        if self._ahead:
            self._ahead.close()
            self._versions.close()
        self._relay.close()
        self._scheduler.close()
        if self._store:
            self._store.close()

    def _pre_infer(
        self, request: Tensors, tokens: NDArray[np.int32], ticket: Ticket, deadline_s: float | None
    ) -> Tensors:
        outcome, ready = self._relay.ask(_owner(request), tokens, deadline_s)
        report = PreInferReport(outcome, len(tokens), ready, ticket.dropped)
        return {**NOTHING, "reuse": np.array([report], np.int64)}

    def _read(self, request: Tensors, tokens: NDArray[np.int32], ticket: Ticket, respond: Respond) -> _Asked:
        candidates = self._rows(request, "candidates", self._options.item_tokens)
        codes = self._rows(request, "codes", self._config.levels)
        if len(codes) != len(candidates):
            raise InputError("codes", f"are of {len(codes)} items", f"{len(candidates)}, as candidates")
        order, keep_user, keep_items = (int(x) for x in check_tensor(request, "plan", np.int64, 3))
        if not 0 <= order < len(ORDERS) or ORDERS[order] not in (*self._options.orders, "whole"):
            known = [ORDERS.index(each) for each in (*self._options.orders, "whole")]
            raise InputError("plan", f"says order {order}", ", ".join(map(str, known)))
        deadline_s = ticket.deadline_ns / 1e9 if ticket.deadline_ns else None
        ranking = RankRequest(_owner(request), tokens[: ticket.prompt_length], candidates, codes, deadline_s)
        return _Asked(ranking, RankPlan(ORDERS[order], bool(keep_user), bool(keep_items)), ticket, respond)

    def _rows(self, request: Tensors, field: str, each: int) -> NDArray[np.int32]:
        """int32[C, each]."""
        values = check_tensor(request, field, np.int32)
        if not len(values) or len(values) % each or len(values) > each * MOST_CANDIDATES:
            raise InputError(
                field, f"has {len(values)} values", f"{each} for each of 1 to {MOST_CANDIDATES} items"
            )
        if not 0 <= int(values.min()) <= int(values.max()) < self._config.vocab_size:
            limit = f"0 to {self._config.vocab_size - 1}"
            raise InputError(field, f"span {values.min()} to {values.max()}", limit)
        return values.reshape(-1, each)

    def _run(self, executor: RankExecutor, batch: list[_Asked | PreInference | IdleBatch]) -> None:
        for each in batch:
            if isinstance(each, PreInference):
                assert executor.ahead is not None
                self._relay.run(executor.ahead, each)
            elif isinstance(each, IdleBatch):
                each.of.run(executor, each)
            else:
                each.respond(self._answer(executor, each))
                if self._ahead:
                    self._ahead.see(len(each.request.tokens), each.request.candidates)

    def _answer(self, executor: RankExecutor, asked: _Asked) -> Answer:
        """Whatever happens."""
        try:
            asked.ticket.check_deadline("score_candidates")
            begun = time.monotonic()
            scores, reuse = executor.scores(asked.request, asked.plan)
            user = len(asked.request.tokens) - reuse.user
            self._relay.cost.learn(True, reuse.user, user, time.monotonic() - begun)
            if not np.isfinite(scores).all():
                raise InputError("scores", "have NaN or infinite values", "finite ones: look at the weights")
            count_ranking(asked.plan.order, reuse)
            return {**NOTHING, "scores": scores[None], "reuse": np.array([reuse], np.int64)}
        except GenrecError as error:
            return error
        except Exception as error:  # the thread must live on
            log.exception("score_candidates")
            return GenrecError(
                f"score_candidates: internal error ({type(error).__name__}), see the server's log"
            )

    def _try(self, executor: RankExecutor, span: int) -> None:
        candidates = np.zeros((MOST_CANDIDATES // 4, self._options.item_tokens), np.int32)
        codes = np.zeros((len(candidates), self._config.levels), np.int32)
        asked = RankRequest(None, np.zeros(span, np.int32), candidates, codes)
        executor.scores(asked, RankPlan(self._options.orders[0], False, False))


def _item_store(settings: Settings, options: RankerConfig) -> ItemStore | None:
    """Of several nodes; joined in the background."""
    if settings.nodes == 1:
        return None
    from genrec.pool.mooncake import Mooncake  # a package that one node does without

    join = partial(Mooncake, settings.store, settings.store_host, settings.store_mb << 20)
    store = ItemStore(join, options.item_tokens)
    store.start()
    return store


def _order(request: Tensors) -> int:
    return int(check_tensor(request, "plan", np.int64, 3)[0])


def _owner(request: Tensors) -> int | None:
    named, user = (int(x) for x in check_tensor(request, "owner", np.int64, 2))
    return user if named else None
