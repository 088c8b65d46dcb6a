"""What a target offers the steps: the passes of the generator, over arrays or in arena memory, and whole requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from genrec.kv.arena import Region, Row
from genrec.kv.layout import Layout

if TYPE_CHECKING:  # they import numba, which a device run need not have
    from genrec.catalogue.validity import ValidityIndex
    from genrec.search.constraint import Constraint
    from genrec.search.expand import Beams

Array = NDArray[Any]
WEIGHTS = "weights_"  # begins the name of a graph's input that is a weight


class DecodePass(NamedTuple):
    """What a decode pass reads, and the arrays that it fills: the logits, and one more of each list of unshared KV."""

    level: int  # that is scored
    codes: Array  # int64[B, W], of level - 1
    lengths: Array  # int64[B], of the prompts
    shared: Sequence[Array]  # 2N tensors [B, G, S, D]
    # 2N lists of [B, W, G, D], a tensor per level from 1 on: level - 2 are read, one more is filled except at the last.
    unshared: Sequence[Sequence[Array]]
    logits: Array  # float32[B, W, T_level]
    lends: bool = False  # whether the logits may lie elsewhere, until the next pass of the level


class Past(NamedTuple):
    """The first tokens of a prompt, whose KV is there; where they are all of it, the first level's logits too."""

    tokens: int
    kv: Sequence[Array]  # 2N tensors [1, G, P, D], P >= tokens
    logits: Array | None = None  # float32[T_1]


# Fills a user's entry [2N, G, S, D] with the KV of a prompt, and zeros behind it.
BringPrompt = Callable[[Array], None]


class ShowPrompt(Protocol):
    """Is shown a prompt: its row of a batch, and the first level's logits float32[T_1] where the host has them."""

    def __call__(self, row: int, bring: BringPrompt, logits: Array | None = None, /) -> None:
        """Once a prompt; copies what it wants to keep."""


class Passes(Protocol):
    """The passes of the generator, one after the other, on arrays used where they lie. Several may run at once."""

    def prefill(
        self, tokens: Array, lengths: Array, logits: Array, kv: Sequence[Array], lends: bool = False
    ) -> Sequence[Array]:  # fmt: skip
        """tokens int64[B, S] padded right, lengths int64[B] >= 1: fills logits [B, 1, T_1], 2N kv [B, G, S, D].

        The kv is returned: where it `lends`, it may lie elsewhere, until the next such call.
        """

    def decode(self, given: DecodePass) -> Array:
        """Score one level of beams: the logits."""

    def draft_states(self, tokens: Array, lengths: Array) -> NDArray[np.float32]:
        """tokens [B, S] with placeholders after each row's history, lengths [B] of the histories: [B, 1 + L, hidden].

        One pass for a whole draft (NEZHA, section 3.2); no KV is kept.
        """


@runtime_checkable
class ResumePasses(Passes, Protocol):
    """Passes that go on behind KV that is there."""

    resumes: bool  # whether the engines were built with such a pass
    resumes_drafts: bool  # the same of `draft_behind`

    def resume(self, tokens: Array, past: Past, logits: Array, new: Sequence[Array]) -> None:
        """tokens int64[1, Q] behind a past: fills logits [1, 1, T_1], 2N new kv [1, G, Q, D]."""

    def draft_behind(self, tokens: Array, past: Past, states: Array, new: Sequence[Array]) -> None:
        """tokens int64[1, Q], placeholders last, behind a past, which may be of none: fills states [1, 1 + L, hidden]
        and 2N new kv [1, G, Q, D].
        """  # fmt: skip


class KnownPass(NamedTuple):
    """What a pass over beams of all levels reads. B = 1; lists have an entry for each level < L."""

    codes: Sequence[Array]  # int64[1, W_l]
    parents: Sequence[Array]  # from level 2 on: int64[W_l], places in the level before
    length: Array  # int64[1], of the prompt
    shared: Sequence[Array]  # 2N tensors [1, G, S, D]


@runtime_checkable
class KnownPasses(Passes, Protocol):
    """Passes that score beams of all levels at once, where they are known beforehand."""

    decodes_all: bool  # whether the engines were built with such a pass

    def decode_all(self, given: KnownPass) -> Sequence[Array]:
        """Score all levels but the first: logits float32[1, W_l, T_(l + 1)] of each, until the next such pass."""


class UserName(NamedTuple):
    """What says all that is in a user's entry, so that an engine with memory of its own can keep it."""

    key: bytes  # empty where it may not be kept
    # When anybody was last forgotten, on the monotonic clock: what was kept before then has to go.
    forgot_ns: int

    @classmethod
    def of(cls, key: bytes, came_ns: int | None, forgot_ns: int) -> UserName:
        """For a request that came at `came_ns`: whoever was forgotten since was perhaps its user."""
        return cls(key if came_ns is None or came_ns > forgot_ns else b"", forgot_ns)


class Split(NamedTuple):
    """A ranking in order `split` whose entries are there: the user's, and rows of a table of items."""

    rows: Array  # int[C]
    length: int  # tokens of the user
    user: Array  # [1, 2N, G, S, D]
    user_name: UserName | None = None
    item_names: NDArray[np.uint64] | None = None  # [C, 2]: what says all that is in the items' entries
    unchanged: Callable[[], bool] = lambda: True  # whether these are still what was read


class RankPasses(Protocol):
    """The passes of a ranker (`genrec.nn.ranker`), on arrays used where they lie; one at a time.

    A user's entry is 2N tensors [1, G, S, D]: k, v of layer 0, then of layer 1, ... Items' entries are rows of a table
    [M, 2N, G, t, D]. States are float32 [C, hidden], one per candidate.
    """

    most: int  # rankings in order `split` that may be one pass

    @property
    def captured(self) -> int:
        """Shapes made ready so far: what a pass took during which it changes says nothing of others."""

    def rehearse(self, candidates: int) -> None:
        """Make ready what is slow when it first comes: all shapes of rankings of so many candidates."""

    def keep(self, name: UserName, user: Array) -> None:
        """A ranking is about to read this user's entry [1, 2N, G, S, D]: what has memory of its own keeps it there."""

    def hold(self, items: Array) -> None:
        """Rows of items' KV will be read from this memory: what copies them may make that fast."""

    def entries(self, tokens: Array, kv: Sequence[Array]) -> None:
        """tokens int64[B, S], none padded: fills 2N kv [B, G, S, D]; of one user, or of several items at once."""

    def extend(self, tokens: Array, past: int, kv: Sequence[Array], new: Sequence[Array]) -> None:
        """tokens int64[1, Q] behind the first `past` of a user's entry `kv`: fills 2N new [1, G, Q, D]."""

    def split(self, items: Array, rankings: Sequence[Split]) -> list[NDArray[np.float32]]:
        """States of the candidates of up to `most` rankings over one table of items."""

    def user_first(self, candidates: Array, length: int, user: Sequence[Array]) -> NDArray[np.float32]:
        """States of candidates with tokens int64[C, t], computed behind the user."""

    def item_first(self, tokens: Array, items: Array, rows: Array) -> NDArray[np.float32]:
        """States of candidates, the user's tokens int64[1, S] computed behind all of them."""


class HstuPasses(Protocol):
    """The passes of an HSTU ranker (`genrec.nn.hstu_graphs`), on arrays used where they lie; one at a time.

    A user's KV is 2N tensors float32[1, H, S, D]: k, v of layer 0, then of layer 1, ...
    """

    @property
    def captured(self) -> int:
        """As of `RankPasses`."""

    def rehearse(self, candidates: int) -> None:
        """Make ready what is slow when it first comes: users of all lengths, and rankings of so many candidates."""

    def hold(self, memory: Array) -> None:
        """A user's KV is about to be read from this memory, or written there: what copies it may make that fast."""

    def user(
        self, tokens: Array, marks: Array, past_marks: Array, past: Sequence[Array], new: Sequence[Array]
    ) -> None:
        """tokens int64[Q, n] (`HstuConfig.read`) behind `past`, of P >= 1 tokens: fills 2N new [1, H, Q, D].

        marks int64[3, Q, Q] towards themselves, past_marks int64[3, Q, P] towards those before.
        """

    def logits(self, asked: Sequence[Array], marks: Array, user: Sequence[Array]) -> NDArray[np.float32]:
        """[C, outputs] of candidates; `asked` are the rows of a query (`HstuConfig.query`), candidates last.

        marks int64[3, S] of its tokens towards the user's.
        """


class Executor(Protocol):
    """Whole requests in one call: the loop over the levels without hops between models."""

    captures: bool  # whether a new shape is so slow the first time that all are rehearsed before the server is ready
    resumes: bool  # whether it takes `pasts`

    @property
    def captured(self) -> int:
        """As of `RankPasses`."""

    def answers(
        self, tokens: Array, lengths: Array, constraints: list[Constraint], *,
        prompts: ShowPrompt | None = None, pasts: Sequence[Past] = (),
    ) -> list[Beams]:  # fmt: skip
        """tokens int64[B, S] padded right, lengths int64[B] >= 1 -> the last level's beams of every request.

        `prompts` is shown every prompt's KV that is sound. `pasts`: of the last rows, what is there of their
        prompts. Raises InputError when a logit of a valid code is NaN or +inf.
        """

    def rehearse(self, rows: int, span: int, valid: ValidityIndex, past: Past | None = None) -> None:
        """Run every pass that a batch of `rows` prompts of `span` tokens may need: engines are slow the first time.

        With a `past`, of one token, also the one behind it.
        """


class Engine:
    """The passes on tensors of the arena: KV is neither copied in nor out."""

    def __init__(self, layout: Layout, passes: Passes) -> None:
        self.layout, self._passes = layout, passes
        self._tensors = range(2 * layout.config.num_hidden_layers)
        self.draft_states = passes.draft_states
        self.draft_behind = None  # where there is no such pass
        if isinstance(passes, ResumePasses) and passes.resumes_drafts:
            self.draft_behind = passes.draft_behind

    def prefill(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], region: Region) -> None:
        """tokens [B, S] padded on the right, lengths [B] >= 1: first-level logits and shared KV go to `region`."""
        kv = [self.layout.shared(region, n) for n in self._tensors]
        self._passes.prefill(tokens, lengths, self.layout.first_logits(region), kv)

    def decode(self, level: int, codes: NDArray[np.int64], length: int, row: Row) -> None:
        """codes [W] of level `level - 1`: reads the row's KV, leaves logits [W, T_level] and the new unshared KV."""
        layout, width = self.layout, len(codes)
        shared = [layout.row_shared(row, n) for n in self._tensors]
        kept = range(min(level - 1, layout.config.levels - 2))
        unshared = [[layout.unshared(row, n, u, width) for u in kept] for n in self._tensors]
        logits = layout.logits(row, level, width)[None]
        self._passes.decode(DecodePass(level, codes[None], np.array([length]), shared, unshared, logits))
