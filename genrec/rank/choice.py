"""What a ranking reuses, computes and keeps: the choice of the prefix, once per request, by counting tokens.

BAT, section 5.3, and what it is compared with. A prompt is the user's tokens, then the candidates' (`user`), the other
way round (`item`), or both apart with discriminant tokens that see both (`split`). Only a prefix can be reused and
kept: in user order the user's KV, in item order the items', in split order both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.pool.hotness import Hotness
from genrec.pool.keys import Words
from genrec.pool.rule import Recency, Room, Standing


@dataclass(frozen=True)
class Request:
    """Tokens of a ranking and how many of them are in the pool."""

    user: int
    candidates: int
    item: int  # tokens of one
    user_cached: int = 0  # tokens of the user that agree with an entry
    items_cached: int = 0  # candidates whose row is there
    marked: bool = True  # a discriminant token per candidate; else one for all of them

    @property
    def items(self) -> int:
        """Tokens of all candidates."""
        return self.candidates * self.item

    def cost(self, order: str) -> int:
        """Tokens to compute in this order, with all reuse that it allows; `whole` is without any."""
        user = self.user - self.user_cached * (order in ("user", "split"))
        cached = self.items_cached * (order in ("item", "split"))
        marks = self.candidates if self.marked or order == "split" else 1
        return user + (self.candidates - cached) * self.item + marks


@dataclass(frozen=True)
class Choice:
    """What to do with one request."""

    order: str  # user, item, split, or whole: nothing is reused
    user_reused: int  # tokens
    items_reused: int  # candidates
    computed: int  # tokens
    keep_user: bool
    keep_items: bool


def choice(request: Request, order: str) -> Choice:
    """This order with all the reuse that it allows, and all kept that it may keep."""
    user, items = order in ("user", "split"), order in ("item", "split")
    return Choice(
        order, request.user_cached * user, request.items_cached * items, request.cost(order), user, items
    )  # fmt: skip


class Policy(Recency):
    """A rule of choice, and of which users' entries leave first: the least recently used, unless it says else."""

    def __init__(self, hotness: Hotness) -> None:
        self._hotness = hotness

    def choose(self, request: Request, owner: Words, now: int, room: Callable[[], Room]) -> Choice:
        """The plan for one request of `owner` uint64[2] at `now` (ns); `room` says what an entry would find."""
        raise NotImplementedError


class Fixed(Policy):
    """One order, whatever is in the pool."""

    def __init__(self, hotness: Hotness, order: str) -> None:
        super().__init__(hotness)
        self._order = order

    def choose(self, request: Request, owner: Words, now: int, room: Callable[[], Room]) -> Choice:
        """That order."""
        return choice(request, self._order)


class Agnostic(Policy):
    """The longer part first, whatever is in the pool (BAT's cache-agnostic scheduling)."""

    def choose(self, request: Request, owner: Words, now: int, room: Callable[[], Room]) -> Choice:
        """User order where the user has at least as many tokens as the items."""
        return choice(request, "user" if request.user >= request.items else "item")


class Greedy(Policy):
    """BAT's rule: the user first where he is the longer part and comes more often than the rarest cached user.

    A user whose entry makes his order the cheaper one is read first whatever his frequency.
    """

    at_hand = 1  # the frequency counts the request at hand

    def choose(self, request: Request, owner: Words, now: int, room: Callable[[], Room]) -> Choice:
        """User order if it is cheaper with what is cached, or worth a place; else item order."""
        frequency = self._hotness.see(owner, now) + self.at_hand
        if request.user < request.items:
            return choice(request, "item")
        if request.user_cached and request.cost("user") <= request.cost("item"):
            return choice(request, "user")
        found = room()
        return choice(request, "user" if found.free or frequency > found.least else "item")

    def worth(self, standing: Standing) -> NDArray[np.float64]:
        """float64[n]: the frequency now."""
        return self._hotness.frequency(standing.owner, standing.now)


class Past(Greedy):
    """The same by earlier requests only: in the paper's rule the request at hand alone beats users grown cold."""

    at_hand = 0


class Hazard(Policy):
    """A place for who will come back: the returns to be expected, at the price of the place, must repay the choice.

    On a miss the user order computes the items and the item order does not: that difference is the investment.
    """

    def choose(self, request: Request, owner: Words, now: int, room: Callable[[], Room]) -> Choice:
        """User order if it is cheaper with what is cached, or pays in the long run."""
        earlier = self._hotness.see(owner, now)
        self._hotness.items[:] = request.items
        invested = request.cost("user") - request.cost("item")
        if invested <= 0:
            return choice(request, "user")
        whole = Request(request.user, request.candidates, request.item, request.user, marked=request.marked)
        gain = request.cost("item") - whole.cost("user")  # of a return that finds all of it
        pays = gain > 0 and self._hotness.net(earlier, gain, request.user) > invested
        return choice(request, "user" if pays else "item")

    def worth(self, standing: Standing) -> NDArray[np.float64]:
        """float64[n]: tokens saved a second for each token of its place."""
        saved = 1 - self._hotness.items / np.maximum(standing.tokens, 1)
        return self._hotness.chance(standing.owner, standing.now) * saved

    def evicted(self, worth: float) -> None:
        """A place costs what those who left would have saved."""
        self._hotness.price += 0.01 * (worth - self._hotness.price)


POLICIES: dict[str, Callable[[Hotness], Policy]] = {
    "recompute": partial(Fixed, order="whole"),
    "user": partial(Fixed, order="user"),  # always first: what serving systems with a prefix cache do
    "item": partial(Fixed, order="item"),
    "agnostic": Agnostic, "greedy": Greedy, "past": Past, "hazard": Hazard,
    # Both at once: keeping costs no computation, because the user's KV does not depend on the items.
    "split": partial(Fixed, order="split"),
}  # fmt: skip


def policy(name: str, hotness: Hotness) -> Policy:
    """One by its name. Raises InputError."""
    if name not in POLICIES:
        raise InputError("prefix_choice", f"is {name!r}", ", ".join(POLICIES))
    return POLICIES[name](hotness)
