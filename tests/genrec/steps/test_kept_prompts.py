"""Prompts that go on behind what the pool has of their users, against `generate` without a pool."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine import kept_prompts
from genrec.engine.interface import Past
from genrec.engine.kept_prompts import KeptPrompts
from genrec.engine.load import load_executors
from genrec.errors import DeadlineExceeded, GenrecError
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.owner import TTL_S
from genrec.pool.pool import Pool
from genrec.pool.user_rows import LIVES, SEEN, used_entries
from genrec.rank.options import OPTIONS, RankerConfig
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams
from genrec.settings import Settings
from tests.genrec.steps.kept import Start, batches, equal, prompt, reused, starting
from tests.oracles.twin import TwinPasses

STEP = "generate"


pytestmark = pytest.mark.usefixtures("every_prompt_is_worth_it")


@pytest.mark.parametrize("seed", range(3))
def test_answers_do_not_depend_on_what_was_kept(kept_and_plain: tuple[Path, Any, Any], seed: int) -> None:
    artifact, kept, plain = kept_and_plain
    before = reused()
    for batch in batches(artifact, seed, least=1):
        for got, want in zip(kept.run(batch), plain.run(batch), strict=True):
            equal(got, want)
    assert reused() > before


@pytest.mark.parametrize(("name", "whole"), [("generate", 18), ("prefill_draft", 17)])
def test_a_history_that_has_grown_computes_what_is_new(
    twin: Path, tmp_path: Path, name: str, whole: int
) -> None:
    """3 codes an item. Of a prompt that is there whole `prefill_draft` computes the last token, for the states behind
    it; `generate` finds the first logits too, unless the entry goes on behind the prompt.
    """  # fmt: skip
    counts = []
    with starting(name, tmp_path) as start:
        step, _ = start(twin, "twin")
        for items in (4, 6, 6, 3):
            before = reused()
            step.run([prompt(twin, items, 7)])
            counts.append(reused() - before)
    assert counts == [0, 12, whole, 8]


def test_only_tokens_that_may_be_kept_are_counted_and_once_they_are_computed(
    twin: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _ = start(twin, "twin")
    before = metrics.GENERATE_TOKENS.value(kind="computed")
    step.run([prompt(twin, 6, None), prompt(twin, 4, 7)])
    assert metrics.GENERATE_TOKENS.value(kind="computed") == before + 4 * 3
    monkeypatch.setattr(step._executors[0], "answers", lambda *given, **more: 1 / 0)
    step.run([prompt(twin, 5, 8)])
    assert metrics.GENERATE_TOKENS.value(kind="computed") == before + 4 * 3


def test_less_than_half_of_a_prompt_is_computed_with_the_batch(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    step.run([prompt(twin, 3, 7)])
    before = reused()
    step.run([prompt(twin, 7, 7)])
    assert reused() == before and settings.pool
    pool = Pool(settings.pool)
    forget(pool, owner_key(pool.secret, 7))
    assert pool.usage()["bytes"] == 0, "what was found is held still"


@pytest.mark.parametrize(("first", "then"), [(1, 2), (None, None), (1, None), (None, 1)])
def test_nobody_reads_what_another_has_left(
    twin: Path, start: Start, first: int | None, then: int | None
) -> None:
    step, _ = start(twin, "twin")
    step.run([prompt(twin, 6, first)])
    before = reused()
    step.run([prompt(twin, 6, then)])
    assert reused() == before


@pytest.mark.parametrize(("history", "kept"), [("codes", 1), ("tokens", 0)])
def test_nothing_is_kept_for_a_ranker_that_reads_other_tokens(
    tiny_ranker: Path, tmp_path: Path, start: Start, history: str, kept: int
) -> None:
    """Of a prompt that nobody names: only a ranking could read it."""
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    options = RankerConfig.load(artifact / "model" / OPTIONS)
    replace(options, history=history).save(artifact / "model" / OPTIONS)
    step, settings = start(artifact, lease_ms=600_000)
    step.run([prompt(artifact, 6, None)])
    assert settings.pool
    usage = Pool(settings.pool).usage()
    assert usage and usage["entries"] == kept


def test_what_is_forgotten_is_not_found(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    step.run([prompt(twin, 6, 7)])
    assert settings.pool
    pool = Pool(settings.pool)
    assert forget(pool, owner_key(pool.secret, 7)) == 1
    before = reused()
    step.run([prompt(twin, 6, 7)])
    assert reused() == before


@pytest.mark.parametrize("name", ["generate", "prefill_draft"])
@pytest.mark.parametrize("visits", [1, 2])
def test_a_visit_under_way_does_not_bring_back_who_was_forgotten(
    twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, visits: int
) -> None:
    with starting(name, tmp_path) as start:
        step, settings = start(twin, "twin")
        assert settings.pool
        pool = Pool(settings.pool)
        for _ in range(visits - 1):
            step.run([prompt(twin, 6, 7)])
        keep, keep_behind = KeptPrompts.keep, KeptPrompts.keep_behind

        def forgotten(then: Any) -> Any:
            def first(self: Any, *given: Any) -> None:
                forget(pool, owner_key(pool.secret, 7))
                then(self, *given)

            return first

        monkeypatch.setattr(KeptPrompts, "keep", forgotten(keep))
        monkeypatch.setattr(KeptPrompts, "keep_behind", forgotten(keep_behind))
        step.run([prompt(twin, 7, 7)])
        usage = pool.usage()
        assert usage and usage["entries"] == 0 == usage["bytes"]


def test_a_short_prompt_takes_no_more_room_beside_a_long_one(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    assert settings.pool
    pool = Pool(settings.pool)
    step.run([prompt(twin, 1, 7)])
    alone = pool.usage()
    assert alone
    forget(pool, owner_key(pool.secret, 7))
    go_on = Event()
    step.submit(prompt(twin, 8, 9), lambda _: go_on.wait(30))  # what comes now is one batch
    answers = [step.submit(each, lambda _: None) for each in (prompt(twin, 1, 7), prompt(twin, 8, 8))]
    go_on.set()
    step.close()
    for user in (8, 9):
        forget(pool, owner_key(pool.secret, user))
    assert len(answers) == 2 and pool.usage()["bytes"] == alone["bytes"]  # type: ignore[index]


def test_who_is_not_named_stays_for_a_lease_however_often_it_is_used(
    tiny_ranker: Path, tmp_path: Path
) -> None:
    with starting("generate", tmp_path) as start:
        step, settings = start(tiny_ranker)
        assert settings.pool
        step.run([prompt(tiny_ranker, 6, None), prompt(tiny_ranker, 6, 7, seed=1)])
        table = Pool(settings.pool)._map.table  # type: ignore[union-attr]
        rows = table.entries[used_entries(table)]
        lives = sorted((rows[:, LIVES] - rows[:, SEEN]) / 1e9)
        np.testing.assert_allclose(lives, [settings.lease_ms / 1e3, TTL_S])


def test_engines_without_our_operations_compute_prompts_whole(tiny_of_nodes: Path, start: Start) -> None:
    """Behind a past they would write out all scores."""
    step, settings = start(tiny_of_nodes)
    before = reused()
    for _ in range(2):
        step.run([prompt(tiny_of_nodes, 6, 7)])
    assert reused() == before and settings.pool and Pool(settings.pool).usage()["entries"] == 0  # type: ignore[index]


def test_what_is_read_or_refused_can_leave_again(twin: Path, start: Start) -> None:
    """Entries that a batch reads stay in their places until it is answered, and no longer."""
    step, settings = start(twin, "twin")
    for _ in range(3):
        step.run([prompt(twin, 6, 7)])
    late, alone = step.run([prompt(twin, 6, 7, deadline_ns=1), prompt(twin, 6, 7)])
    assert isinstance(late, DeadlineExceeded) and not isinstance(alone, GenrecError)
    assert settings.pool
    pool = Pool(settings.pool)
    assert pool.usage()["bytes"]
    forget(pool, owner_key(pool.secret, 7))
    assert pool.usage()["bytes"] == 0  # at once, as nobody holds it


@pytest.mark.parametrize("name", ["generate", "prefill_draft"])
def test_the_queue_counts_what_will_be_computed(
    twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else who comes again is refused where a queue is long, as if all of his prompt were new."""
    with starting(name, tmp_path) as start:
        step, _ = start(twin, "twin")
        submit, counted = step._scheduler.submit, list[int]()
        monkeypatch.setattr(
            step._scheduler,
            "submit",
            lambda item, tokens, when: counted.append(tokens) or submit(item, tokens, when),
        )
        for _ in range(2):
            step.run([prompt(twin, 6, 7)])
        first, again = (tokens - step._behind for tokens in counted)
        assert first == prompt(twin, 6, 7)["tokens"].size and again == first - 6 * 3


def test_a_queue_that_refuses_lets_go_of_what_was_found(
    twin: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, settings = start(twin, "twin")
    step.run([prompt(twin, 6, 7)])

    def refuse(*_: Any) -> None:
        raise DeadlineExceeded("deadline_ms: 1.0 ms are left")

    monkeypatch.setattr(step._scheduler, "submit", refuse)
    (refused,) = step.run([prompt(twin, 6, 7)])
    assert isinstance(refused, DeadlineExceeded) and settings.pool
    pool = Pool(settings.pool)
    forget(pool, owner_key(pool.secret, 7))
    assert pool.usage()["bytes"] == 0


def test_a_lost_pool_costs_time_and_no_answer(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    plain, _ = start(twin, "twin", 0)
    step.run([prompt(twin, 6, 7)])
    assert settings.pool
    for file in settings.pool.iterdir():
        file.write_bytes(b"")
    for got, want in zip(step.run([prompt(twin, 7, 7)]), plain.run([prompt(twin, 7, 7)]), strict=True):
        equal(got, want)


def test_small_models_keep_nothing(twin: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_prompts, "WORTH", 1e15)
    step, settings = start(twin, "twin")
    before = reused()
    for _ in range(2):
        step.run([prompt(twin, 6, 7)])
    assert reused() == before and settings.pool and Pool(settings.pool).usage()["entries"] == 0


def test_a_short_prompt_is_not_padded_to_one_that_is_there(
    twin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, valid = load_config(twin), load_validity(twin, load_config(twin))
    (executor,) = load_executors(Settings(twin, twin / "no-arena", 4, "twin"), config)
    short, long = (prompt(twin, items, 7)["tokens"][0, : 3 * items].astype(np.int64) for items in (2, 8))
    c = config
    kept = np.zeros((2 * c.num_hidden_layers, c.num_key_value_heads, 24, c.head_dim), np.float32)

    def answers(*prompts: Any, pasts: Sequence[Past] = (), show: Any = None) -> list[Beams]:
        lengths = np.array([len(each) for each in prompts])
        tokens = np.zeros((len(prompts), lengths.max()), np.int64)
        for row, each in zip(tokens, prompts, strict=True):
            row[: len(each)] = each
        return executor.answers(
            tokens, lengths, [Constraint(valid)] * len(prompts), prompts=show, pasts=pasts
        )

    want = answers(short) + answers(long, show=lambda _, bring, logits: bring(kept))
    seen, prefill = list[Any](), TwinPasses.prefill

    def look(self: Any, tokens: Any, *others: Any) -> None:
        seen.append(tokens.shape)
        prefill(self, tokens, *others)

    monkeypatch.setattr(TwinPasses, "prefill", look)
    for got, each in zip(answers(short, long, pasts=[Past(21, list(kept[:, None]))]), want, strict=True):
        np.testing.assert_array_equal(got.paths, each.paths)
        np.testing.assert_allclose(got.scores, each.scores, rtol=0, atol=1e-5)
    assert seen == [(1, 6)]
