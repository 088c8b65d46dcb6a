"""An HSTU ranker's users computed ahead, part by part, while deltas change its weights: KV of two is never mixed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.hstu_delta import export_delta
from genrec.artifact import load_config
from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest, load_hstu_executors
from genrec.engine.load_ranker import create_pool
from genrec.rank.hstu import CODES, FEATURE, ITEM, RATING, TIME
from genrec.rank.hstu_weights import load_weights
from genrec.report import ADMITTED, NO_MEMORY, READY, UNDER_WAY
from genrec.schedule import relay as module
from genrec.settings import Settings
from tests.genrec.schedule.relay_bench import RelayBench, ends
from tests.oracles.hstu_further import changed_further

FEATURES, EVENTS = 3, 16
U = FEATURES + EVENTS


class Bench(RelayBench):
    """The executors with the weights of the export and of delta 1; which of them serves is the test's to say."""

    def __init__(self, artifact: Path, twins: list[HstuExecutor], folder: Path, **given: Any) -> None:
        """`twins`: the same without a pool."""
        settings = Settings(artifact, folder / "arena", pool=folder / "pool", **given)
        create_pool(settings, load_config(artifact))
        make = load_hstu_executors(settings, lambda: self.serving)
        self.twins = twins
        self.executors = [make(load_weights(artifact, number))[0] for number in range(2)]
        self.serving: HstuExecutor = self.executors[0]
        super().__init__(settings, lambda: self.serving.ahead)

    def ask(self, user: int, due_s: float = 100, tokens: int = U) -> int:
        return self.relay.ask(user, drawn(user)[:tokens], self.clock.now + due_s)[0]

    def rank(self, user: int, tokens: int = U) -> int:
        """Whoever computed the user, the scores are those of the same weights without a pool; what was reused."""
        number, asked = self.executors.index(self.serving), request_of(user, tokens)
        scores, reuse = self.serving.scores(asked)
        wanted = [twin.scores(asked)[0] for twin in self.twins]
        assert np.abs(wanted[0] - wanted[1]).max() > 0.01
        np.testing.assert_allclose(scores, wanted[number], atol=1e-5)
        return reuse.user

    def take_delta(self) -> None:
        self.serving = self.executors[1]

    @property
    def entries(self) -> int:
        return self.jobs.pool.usage()["entries"]


def drawn(user: int) -> NDArray[np.int32]:
    """Features, then events."""
    draw, tokens = np.random.default_rng(user), np.zeros((U, CODES + 3), np.int32)
    tokens[:FEATURES, FEATURE] = draw.permutation(np.arange(1, 8))[:FEATURES]
    events = tokens[FEATURES:]
    events[:, ITEM], events[:, RATING] = draw.integers(1, 301, EVENTS), draw.integers(1, 6, EVENTS)
    events[:, TIME] = np.sort(draw.integers(0, 10**6, EVENTS))
    events[:, CODES:] = draw.integers(1, 37, (EVENTS, 3))
    return tokens


def request_of(user: int, tokens: int = U) -> HstuRequest:
    draw = np.random.default_rng(user + 1000)
    rows = np.concatenate((draw.integers(1, 301, (9, 1)), draw.integers(1, 37, (9, 3))), 1)
    return HstuRequest(user, drawn(user)[:tokens], rows.astype(np.int32), 10**6 + user)


@pytest.fixture(scope="module")
def artifact(tiny_hstu: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a delta."""
    made = Path(shutil.copytree(tiny_hstu, tmp_path_factory.mktemp("delta") / "artifact"))
    changed_further(made, 1)
    assert export_delta(made) is not None
    return made


@pytest.fixture(scope="module")
def twins(artifact: Path) -> list[HstuExecutor]:
    made: list[HstuExecutor] = []
    load = load_hstu_executors(Settings(artifact, artifact / "arena"), lambda: made[0])
    made += [load(load_weights(artifact, number))[0] for number in range(2)]
    return made


@pytest.fixture
def start(
    artifact: Path, twins: list[HstuExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Bench]]:
    monkeypatch.setattr(module, "PARTS", (16, 8))
    made = []

    def start(**given: Any) -> Bench:
        made.append(Bench(artifact, twins, tmp_path, **{"pool_user_mb": 1, "pre_infer_risk": 0, **given}))
        mapped = made[0].jobs.pool._map
        assert mapped
        mapped.users[:] = 255  # what others left: read as float32, NaN
        return made[0]

    yield start
    made[0].relay.close()
    made[0].go()


def test_what_is_computed_in_parts_is_what_is_computed_at_once(start: Callable[..., Bench]) -> None:
    bench, made = start(), ends("made")
    assert [bench.ask(1), bench.ask(1)] == [ADMITTED, UNDER_WAY]
    assert bench.go() == [8, 16, U] and ends("made") == made + 1
    assert bench.ask(1) == READY and bench.rank(1) == U


def test_a_part_goes_on_behind_what_the_pool_has(start: Callable[..., Bench]) -> None:
    """Of an earlier visit, with 7 events."""
    bench = start()
    bench.rank(1, FEATURES + 7)
    assert bench.ask(1) == ADMITTED
    assert bench.go() == [FEATURES + 15, U] and bench.rank(1) == U


def test_what_the_pool_has_by_the_time_it_begins_is_not_computed(start: Callable[..., Bench]) -> None:
    """A ranking of a longer history came in between."""
    bench = start()
    assert bench.ask(1, tokens=10) == ADMITTED
    bench.then[1] = lambda: bench.rank(1)
    assert bench.go() == [10] and bench.entries == 2
    assert bench.rank(1, 10) == 10


def test_a_ranking_takes_over_what_is_half_done(start: Callable[..., Bench]) -> None:
    bench, taken, reused = start(), ends("overtaken"), list[int]()
    bench.ask(1)
    bench.then[2] = lambda: reused.append(bench.rank(1))
    assert bench.go() == [8] and reused == [8] and ends("overtaken") == taken + 1
    assert bench.rank(1) == U


def test_what_is_half_done_when_a_delta_comes_is_dropped(start: Callable[..., Bench]) -> None:
    bench, old, made = start(), ends("old_weights"), ends("made")
    bench.ask(1)
    bench.then[2] = bench.take_delta
    assert bench.go() == [8, 0] and (ends("old_weights"), ends("made")) == (old + 1, made)
    assert bench.entries == 0 and bench.jobs.count == 0
    assert bench.rank(1) == 0 and bench.rank(1) == U


def test_a_ranking_with_a_delta_takes_nothing_of_old_weights_over(start: Callable[..., Bench]) -> None:
    bench, taken, reused = start(), ends("overtaken"), list[int]()

    def rank() -> None:
        bench.take_delta()
        reused.append(bench.rank(1))

    bench.ask(1)
    bench.then[2] = rank
    assert bench.go() == [8, 0] and reused == [0] and ends("overtaken") == taken


def test_what_was_made_before_a_delta_is_not_ready_with_it(start: Callable[..., Bench]) -> None:
    """The same user is asked for anew, and both are right."""
    bench = start()
    bench.ask(1)

    def ask_again() -> None:
        assert bench.ask(1) == READY
        bench.take_delta()
        assert bench.ask(1) == ADMITTED

    bench.then[4] = ask_again
    assert bench.go() == [8, 16, U, 8, 16, U] and bench.entries == 2
    for executor in bench.executors:
        bench.serving = executor
        assert bench.rank(1) == U


def test_what_a_delta_drops_makes_room_for_others(start: Callable[..., Bench]) -> None:
    """32 tokens of 384 bytes are 12 kB, of 1 MB."""
    bench = start()
    outcomes = [bench.ask(user) for user in range(100)]
    assert outcomes == [ADMITTED] * 85 + [NO_MEMORY] * 15
    bench.then[1] = bench.take_delta
    assert bench.go() == [0] * 85 and bench.jobs.count == 0
    assert bench.relay._admission.admit(1 << 20, 0.0) == ADMITTED
