"""Whole rankings of an HSTU ranker: a user's KV from the pool or computed, then what is asked over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.cores import usable_cores
from genrec.engine.hstu_users import HstuEntries, HstuUsers
from genrec.engine.instructions import engine_of
from genrec.engine.interface import HstuPasses
from genrec.engine.load import load_layout
from genrec.engine.one_core import GAIN, gain
from genrec.engine.pre_infer import PartByPart, PreInferences
from genrec.engine.ranking import Reuse
from genrec.engine.users import UserKv, Users
from genrec.errors import InputError
from genrec.pool.pool import Pool
from genrec.pool.tier import open_tier
from genrec.rank.hstu import CODES, HstuConfig
from genrec.rank.hstu_marks import candidate_marks
from genrec.rank.hstu_weights import HstuWeights
from genrec.rank.kinds import chosen_hstu
from genrec.rank.options import USUAL_CANDIDATES
from genrec.settings import Settings
from genrec.target import ranking_targets, target_of

LONG_S = 0.05  # a ranking that takes longer is work enough for all cores, and not tried on one
MOST_AT_ONCE = 8  # rankings: more would wait for the lock of their process
MakePasses = Callable[[HstuWeights], HstuPasses]


class HstuRequest(NamedTuple):
    """A user's tokens int32[U, token_size], and candidates int32[C, 1 + L] asked for at `now`: rows of tables."""

    owner: int | None  # whose history it is; None: nobody's in particular
    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    now: int
    came_ns: int | None = None  # when it came, on the monotonic clock, if it names a user


class HstuExecutor:
    """One per stream, and per weights. Without a pool everything is computed."""

    one_core = None  # all of its passes have as many cores

    def __init__(
        self, passes: HstuPasses, config: HstuConfig, model: str = "", pool: Pool | None = None,
        ahead: PreInferences | None = None,
    ) -> None:  # fmt: skip
        """`model` names the weights that KV comes from; `ahead`: this process's pre-inferences, if it makes any."""
        self._passes, self._config = passes, config
        self.entries = HstuEntries(config, model)
        users = HstuUsers(passes, self.entries)
        self._nobody = users.nobody
        self.ahead = PartByPart(users, ahead) if ahead else None
        self._users = Users(users, pool, self.ahead)

    @property
    def captured(self) -> int:
        """See `HstuPasses.captured`."""
        return self._passes.captured

    def scores(self, request: HstuRequest) -> tuple[NDArray[np.float32], Reuse]:
        """float32[C], the first of the outputs: of ratings the logit of 4 or more; and what it took."""
        prefix = self._config.prefix(request.tokens)
        query = self._config.query(request.tokens, request.candidates, request.now)
        with self._kv_of(request, prefix) as user:
            marks = candidate_marks(self._config, prefix, query.time, user.kv[0].shape[2])
            logits = self._passes.logits(query.rows, marks, user.kv)
        computed = len(prefix) - user.reused + len(query.rows[0])
        return logits[:, 0], Reuse(user.reused, 0, computed, user.copied)

    @contextmanager
    def _kv_of(self, request: HstuRequest, prefix: NDArray[np.int32]) -> Iterator[UserKv]:
        """See `Users.kv_of`. Who has one event has no token before it, and a graph takes no empty tensor."""
        if not len(prefix):
            yield UserKv(self._nobody, np.zeros(0, np.uint8), 0, 0)
            return
        with self._users.kv_of(request.owner, prefix, True, request.came_ns) as user:
            yield user

    def rehearse(self) -> None:
        """Make both graphs ready, run them once, and keep nothing: they are slow the first time."""
        self._passes.rehearse(USUAL_CANDIDATES)
        self._users.rehearse()
        seconds_of(self._passes, self._config, 2, 1)


def seconds_of(passes: HstuPasses, config: HstuConfig, events: int, candidates: int) -> float:
    """That a ranking takes of a user who has so many, and of whom nothing is there."""
    tokens = np.zeros((events, config.token_size), np.int32)
    asked = np.zeros((candidates, config.token_size - CODES + 1), np.int32)
    begun = time.perf_counter()
    HstuExecutor(passes, config).scores(HstuRequest(None, tokens, asked, 0))
    return time.perf_counter() - begun


class HstuStreams:
    """Passes of weights, as many as may run at once: one that has all cores, or one for each core.

    Two cores share a small model's work badly: a user of 200 events and 100 candidates take 3.8 ms on one core, and 3.5
    on two, which spend 6.3 core-ms on it (64 wide, 3 layers, Zen 4). What is much faster on all cores for the longest
    user stays there.
    """

    def __init__(
        self, load: Callable[[int], MakePasses], config: HstuConfig, threads: int, many: bool
    ) -> None:
        """`load` makes what makes passes of so many threads, 0 for all cores; `threads`: as somebody asked, or 0;
        `many`: whether several may run at once.
        """
        cores = usable_cores()
        self._load, self._config, self._threads = load, config, threads
        self._most = min(cores, MOST_AT_ONCE) if many and not threads else 1
        self._make: list[MakePasses] = []  # by stream

    def __call__(self, weights: HstuWeights) -> list[HstuPasses]:
        """As many every time: the first weights decide. Raises ArtifactError."""
        return [make(weights) for make in self._make] if self._make else self._chosen(weights)

    def _chosen(self, weights: HstuWeights) -> list[HstuPasses]:
        """Those that were tried are among them: each compiles graphs of its own."""
        together = self._load(self._threads)
        every = together(weights)
        if self._most > 1:
            one_core = self._load(1)
            one = one_core(weights)
            if not self._gains(one, every):
                # A graph for each: a stream of OpenVINO's costs a thread's turn per pass.
                self._make = [one_core] * self._most
                return [one, *(make(weights) for make in self._make[1:])]
        self._make = [together]
        return [every]

    def _gains(self, one_core: HstuPasses, all_cores: HstuPasses) -> bool:
        """Whether all cores are much faster."""
        asked = self._config.max_history, USUAL_CANDIDATES
        one, every = (partial(seconds_of, each, self._config, *asked) for each in (one_core, all_cores))
        return min(every() for _ in range(2)) > LONG_S or gain(one, every) >= GAIN  # the first compiles


def load_hstu_executors(
    settings: Settings, serving: Callable[[], HstuExecutor]
) -> Callable[[HstuWeights], list[HstuExecutor]]:
    """What makes executors of weights of the artifact's HSTU ranker, as many as may run at once. They share a pool,
    where KV of one's weights is not found by another's, and pre-inferences, which are those of the one that is
    `serving` when they are asked for.

    Raises InputError, ArtifactError, as what it returns does.
    """
    target, artifact = target_of(settings.target), settings.artifact
    if not target.hstu:
        raise InputError("target", f"{target.name} has no HSTU ranker", ", ".join(ranking_targets(hstu=True)))
    config = chosen_hstu(artifact, settings.ranker)
    kv_type = load_layout(settings, load_config(artifact)).kv_type
    folder = engine_of(artifact, settings.target)
    load = partial(import_module(target.hstu).load_hstu, folder, config, kv_type)
    streams = HstuStreams(load, config, settings.threads, target.streams)
    pool, ahead = Pool(settings.pool) if settings.pool else None, None
    if pool and settings.pool_user_mb:
        tier = open_tier(pool, settings.pool_disk, settings.pool_disk_mb)
        ahead = PreInferences(pool, lambda: serving().entries, settings.lease_ms / 1e3, tier)

    def executors(weights: HstuWeights) -> list[HstuExecutor]:
        return [HstuExecutor(each, config, weights.name, pool, ahead) for each in streams(weights)]

    return executors
