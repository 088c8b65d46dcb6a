"""Tokens that each choice of the prefix saves over recomputation, on traces in the shapes of BAT's data sets.

    genrec bench pool_sim [--requests 100000] [--data games,books,industry]

Nothing is computed but tokens, and the operations that they cost the paper's own model, Qwen2-1.5B: throughput goes as
one over these while computation is what limits it (BAT, section 5.3). The policies are the ones that are served
(genrec/rank/choice.py); the pool is a simple one that evicts the least of 16 entries drawn.

A trace is sessions: users start one by a Zipf law, ask a geometric number of times, with lognormal gaps; lengths are
lognormal. Users, items and mean tokens are the paper's Table 1, KV a token its Table 2 (Qwen2-1.5B); four nodes of 150
GB hold all items, and users in what is left (with the user order alone: in all). What the paper does not say (skew,
sessions, gaps, spread of lengths) is assumed, and printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.pool.hotness import Hotness
from genrec.pool.rule import Room, Standing
from genrec.progress import counting
from genrec.rank.choice import POLICIES, Policy, Request, policy
from perf.kit import report
from perf.rank.mock_ranker import PAPER_LAYERS, PAPER_WIDTH, narrow
from perf.rank.operations import Ranked, operations

TOKEN_BYTES = 28_672
POOL_BYTES = 4 * 150e9
CANDIDATES = 100
LONGEST = 8192  # tokens of a prompt
DRAWN = 16
WARM = 0.3  # of the requests, which are not counted
NS = 1e9
PAPER_MODEL = narrow(PAPER_WIDTH, PAPER_LAYERS)


@dataclass(frozen=True)
class DataShape:
    """A data set: the paper's Table 1, then what is assumed."""

    users: int
    items: int
    user_tokens: int  # mean
    item_tokens: int
    skew: float = 0.9  # exponent of who starts a session
    session: float = 1.3  # requests in one, mean
    gap_s: float = 60.0  # between two, median
    rate: float = 100.0  # requests a second
    spread: float = 1.0  # standard deviation of the logarithm of a user's tokens
    each: int = 1  # users of the whole world that one of these stands for
    candidates: int = CANDIDATES
    longest: int = LONGEST

    def scaled(self, scale: int, prompts: float = 1.0) -> DataShape:
        """A smaller world: users, items and rate divided by `scale`, a prompt's length multiplied by `prompts`.

        A pool that is divided alike hits as often: one user comes as often as the `scale` users he stands for, and the
        pool holds him as long as it would hold each of them. A shorter prompt has fewer tokens of the user and fewer
        candidates; an item keeps its tokens.
        """
        return replace(
            self, users=self.users // scale, items=self.items // scale, rate=self.rate / scale, each=self.each * scale,
            user_tokens=int(self.user_tokens * prompts), candidates=max(round(self.candidates * prompts), 1),
            longest=int(self.longest * prompts),
        )  # fmt: skip

    @property
    def coming(self) -> NDArray[np.float64]:
        """float64[users]: the chance that a session is of this user or one before him, who come more often."""
        chance = (np.arange(self.users * self.each) + 10.0) ** -self.skew
        return np.cumsum(chance.reshape(self.users, self.each).sum(1)) / chance.sum()

    @property
    def left_tokens(self) -> int:
        """What users have of the pool, in tokens: what the items leave, at least 20 GB."""
        items = self.items * self.item_tokens * TOKEN_BYTES
        return int(max(POOL_BYTES - items, 20e9) / TOKEN_BYTES)


SHAPES = {
    "games": DataShape(15_000, 8_000, 1245, 11),
    "beauty": DataShape(22_000, 12_000, 2043, 18),
    "books": DataShape(510_000, 280_000, 1586, 15),
    "industry": DataShape(10_000_000, 1_000_000, 1500, 10, skew=0.7, session=1.15),
}


@dataclass(frozen=True)
class Trace:
    """Requests in order of time: `user` int64[n], `when` int64[n] in ns, `tokens` int64[n] of the user's history."""

    user: NDArray[np.int64]
    when: NDArray[np.int64]
    tokens: NDArray[np.int64]


def lengths(draw: np.random.Generator, shape: DataShape) -> NDArray[np.int64]:
    """Tokens of every user: lognormal, cut to what a prompt holds, with the mean that the shape says."""
    raw = np.exp(shape.spread * draw.standard_normal(shape.users))
    most = shape.longest - shape.candidates * shape.item_tokens
    scale = shape.user_tokens / raw.mean()
    for _ in range(30):  # the cut lowers the mean
        cut = np.clip(raw * scale, 50, most)
        scale *= shape.user_tokens / cut.mean()
    return cut.astype(np.int64)


def trace(shape: DataShape, requests: int, seed: int = 0, tokens: NDArray[np.int64] | None = None) -> Trace:
    """So many requests and a little more, by sessions; of users with these `tokens` int64[users], if they are known."""
    draw = np.random.default_rng(seed)
    tokens = lengths(draw, shape) if tokens is None else tokens
    sessions = int(np.ceil(requests / shape.session))
    starts = draw.random(sessions) * requests / shape.rate
    who = np.searchsorted(shape.coming, draw.random(sessions), side="right").clip(max=shape.users - 1)
    counts = draw.geometric(1 / shape.session, sessions)
    gaps = shape.gap_s * np.exp(draw.standard_normal(counts.sum()))
    heads = np.cumsum(counts) - counts
    gaps[heads] = starts
    passed = np.cumsum(gaps)
    when = passed - np.repeat(passed[heads] - starts, counts)
    user = np.repeat(who, counts)
    order = np.argsort(when, kind="stable")
    # Not from 0: that is never, to who counts.
    return Trace(user[order], ((when[order] + 1) * NS).astype(np.int64), tokens[user[order]])


class Cache:
    """Users' entries by tokens: no places, only a limit. Victims are the least of DRAWN that are drawn."""

    def __init__(self, limit: int, rule: Policy, owners: NDArray[np.uint64]) -> None:
        self.limit, self.used, self.rule, self._owners = limit, 0, rule, owners
        self._draw = np.random.default_rng(0)
        self._held: list[int] = []
        self._place: dict[int, int] = {}
        self._tokens = np.zeros(len(owners), np.int64)
        self._seen = np.zeros(len(owners), np.int64)

    def __contains__(self, user: int) -> bool:
        return user in self._place

    def room(self, tokens: int, now: int) -> Room:
        """What an entry of so many tokens would find."""
        if self.used + tokens <= self.limit:
            return Room(True, -np.inf)
        return Room(False, self._least(now)[1] if self._held else np.inf)

    def keep(self, user: int, tokens: int, now: int) -> None:
        """Put an entry in, or touch it; others leave for it."""
        self._seen[user] = now
        if user in self._place or tokens > self.limit:
            return
        while self.used + tokens > self.limit:
            victim, worth = self._least(now)
            self.rule.evicted(worth)
            self._drop(victim)
        self._place[user] = len(self._held)
        self._held.append(user)
        self._tokens[user] = tokens
        self.used += tokens

    def _least(self, now: int) -> tuple[int, float]:
        drawn = np.array([self._held[at] for at in self._draw.integers(0, len(self._held), DRAWN)])
        age = (now - self._seen[drawn]) / NS
        worth = self.rule.worth(Standing(now, age, self._tokens[drawn], self._owners[drawn]))
        least = int(np.argmin(worth))
        return int(drawn[least]), float(worth[least])

    def _drop(self, user: int) -> None:
        at, last = self._place.pop(user), self._held.pop()
        if last != user:
            self._held[at], self._place[last] = last, at
        self.used -= int(self._tokens[user])


def simulate(
    shape: DataShape, requests: Trace, name: str, limit: int, item_hit: float = 1.0
) -> dict[str, float]:
    """Of one policy, after warming: `speedup` over recomputation by tokens and `speedup_operations` by operations,
    `reused` share, `user_hits` share; and a request's `computed_tokens` and `items_reused`.

    The paper's orders have one discriminant token, split has one per candidate. Of the candidates the share `item_hit`
    is in the pool.
    """  # fmt: skip
    distinct, user = np.unique(requests.user, return_inverse=True)
    owners = np.random.default_rng(1).integers(0, 2**63, (len(distinct), 2)).astype(np.uint64)
    rule = policy(name, Hotness(owners=max(1 << (4 * len(distinct)).bit_length(), 8)))
    cache = Cache(limit, rule, owners)
    computed = whole = hits = items = done = all_done = 0
    cached = round(item_hit * shape.candidates)
    first = int(len(user) * WARM)
    for i, (who, now, tokens) in enumerate(
        zip(user.tolist(), requests.when.tolist(), requests.tokens.tolist(), strict=True)
    ):
        there = who in cache
        request = Request(
            tokens, shape.candidates, shape.item_tokens, tokens * there, cached, marked=name == "split"
        )
        plan = rule.choose(request, owners[who], now, partial(cache.room, tokens, now))
        if plan.keep_user:
            cache.keep(who, tokens, now)
        if i >= first:
            computed += plan.computed
            whole += tokens + request.items + 1
            hits += plan.user_reused > 0
            items += plan.items_reused
            asks = Ranked(
                plan.order, tokens, shape.candidates, shape.item_tokens, plan.user_reused, plan.items_reused,
                shape.candidates if name == "split" else 1,
            )  # fmt: skip
            done += operations(asks, PAPER_MODEL)
            all_done += operations(
                asks._replace(order="whole", user_reused=0, items_reused=0, marks=1), PAPER_MODEL
            )
    counted = len(user) - first
    return {
        "speedup": whole / computed,
        "speedup_operations": all_done / done,
        "reused": 1 - computed / whole,
        "user_hits": hits / counted,
        "computed_tokens": computed / counted,
        "items_reused": items / counted,
    }


def run(shape: DataShape, requests: int, seed: int) -> dict[str, dict[str, float]]:
    """Policy -> its figures, all on one trace."""
    asked = trace(shape, requests, seed)
    whole = int(POOL_BYTES / TOKEN_BYTES)  # which users alone have it
    return {
        name: simulate(shape, asked, name, whole if name == "user" else shape.left_tokens)
        for name in counting("pool_sim", len(POLICIES), "policy", leave=False, iterable=POLICIES)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("pool_sim", __doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="of each trace")
    parser.add_argument("--data", default="games,books,industry", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--seed", type=int, default=0, help="of the trace")
    asked = parser.parse_args(arguments)
    names = asked.data.split(",")
    if not set(names) <= set(SHAPES):
        raise InputError("data", f"is {asked.data!r}", ", ".join(SHAPES))
    if asked.requests < 100:
        raise InputError("requests", f"is {asked.requests}", "at least 100")
    publication = report.begin(asked)
    figures: dict[str, Any] = {}
    for name in names:
        figures[name] = run(SHAPES[name], asked.requests, asked.seed)
        print(f"\n{name}: {asdict(SHAPES[name])}")
        rows = [
            [
                policy_name,
                f"{of['speedup']:.2f}",
                f"{of['speedup_operations']:.2f}",
                f"{of['reused']:.0%}",
                f"{of['user_hits']:.0%}",
            ]
            for policy_name, of in figures[name].items()
        ]
        head = ["policy", "speed-up by tokens", "by operations", "tokens reused", "user hits"]
        print(report.columns(head, rows), flush=True)
    publication.publish({"simulated": figures, "token_bytes": TOKEN_BYTES}, repeats=1)


if __name__ == "__main__":
    main()
