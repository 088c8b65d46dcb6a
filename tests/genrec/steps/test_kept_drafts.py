"""Drafts that go on behind what the pool has of their users, against `prefill_draft` without a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec import steps
from genrec.artifact import load_config
from genrec.errors import DeadlineExceeded, InputError
from genrec.pool import lead
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from genrec.pool.user_rows import BOUNDARIES, PAYLOAD, SPAN, START, used_entries
from tests.genrec.steps.kept import MOST, Start, batches, prompt, reused, spoilt, starting

STEP = "prefill_draft"


pytestmark = pytest.mark.usefixtures("every_prompt_is_worth_it")


@pytest.mark.parametrize("seed", range(3))
def test_states_do_not_depend_on_what_was_kept(kept_and_plain: tuple[Path, Any, Any], seed: int) -> None:
    artifact, kept, plain = kept_and_plain
    before = reused()
    for batch in batches(artifact, seed, least=0):
        for got, want in zip(kept.run(batch), plain.run(batch), strict=True):
            np.testing.assert_allclose(got["states"], want["states"], rtol=0, atol=1e-4)
    assert reused() > before


def test_the_room_behind_a_prompt_that_has_grown_is_empty(twin: Path, start: Start) -> None:
    """Who reads the entry reads that too, and 0 times NaN is NaN."""
    step, settings = start(twin, "twin")
    assert settings.pool
    mapped = Pool(settings.pool)._map
    assert mapped
    mapped.users[:] = 255  # NaN, as float32
    for items in (4, 7):
        step.run([prompt(twin, items, 7)])
    (row,) = mapped.table.entries[used_entries(mapped.table)].tolist()
    begin, config = row[START] + lead.bytes_of(row[BOUNDARIES]), load_config(twin)
    kv = mapped.users[begin : begin + row[PAYLOAD]].view(np.float32).reshape(-1, row[SPAN], config.head_dim)
    room = kv[:, 7 * config.levels :]
    assert room.size and (room == 0).all()


def test_the_longest_history_comes_again(tiny: Path, start: Start) -> None:
    """Its placeholders stand behind the last position that a prompt can have."""
    kept, _ = start(tiny)
    plain, _ = start(tiny, megabytes=0)
    config = load_config(tiny)
    whole = prompt(tiny, MOST, 7)
    whole["tokens"] = np.resize(whole["tokens"], (1, config.max_prompt))
    whole["ticket"][0, 1] = config.max_prompt
    (want,) = plain.run([whole])
    before = reused()
    for _ in range(2):
        (got,) = kept.run([whole])
        np.testing.assert_allclose(got["states"], want["states"], rtol=0, atol=1e-4)
    assert reused() - before == config.max_prompt - 1


@pytest.mark.parametrize("order", [("generate", "prefill_draft"), ("prefill_draft", "generate")])
def test_both_decoders_go_on_behind_what_either_left(
    twin: Path, start: Start, order: tuple[str, str]
) -> None:
    """The placeholders come last: no token of the prompt sees them."""
    _, settings = start(twin, "twin")
    first, second = (steps.load(name, settings) for name in order)
    try:
        first.run([prompt(twin, 6, 7)])
        before = reused()
        second.run([prompt(twin, 7, 7)])
        assert reused() - before == 18
    finally:
        for step in (first, second):
            if hasattr(step, "close"):
                step.close()


def test_a_draft_of_a_prompt_that_recommend_has_left_whole(tiny: Path, start: Start) -> None:
    """The first level's logits, which `recommend` leaves too, are no state."""
    kept, settings = start(tiny)
    plain, _ = start(tiny, megabytes=0)
    generate = steps.load("generate", settings)
    generate.run([prompt(tiny, 6, 7)])
    generate.close()
    before = reused()
    (got,) = kept.run([prompt(tiny, 6, 7)])
    assert isinstance(got, dict), got
    np.testing.assert_allclose(got["states"], plain.run([prompt(tiny, 6, 7)])[0]["states"], rtol=0, atol=1e-4)
    assert reused() - before == 17


def test_nobody_reads_what_another_or_a_forgotten_user_has_left(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    assert settings.pool
    pool = Pool(settings.pool)
    step.run([prompt(twin, 6, 7)])
    before = reused()
    step.run([prompt(twin, 6, 8)])
    step.run([prompt(twin, 6, None)])
    forget(pool, owner_key(pool.secret, 7))
    step.run([prompt(twin, 6, 7)])
    assert reused() == before


def test_a_bad_prompt_is_an_error_of_its_own_and_holds_nothing(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    step.run([prompt(twin, 6, 7)])
    bad = prompt(twin, 6, 7)
    bad["owner"] = np.array([[1, 7]])
    good, wrong, late = prompt(twin, 6, None), {**bad}, prompt(twin, 6, 7, deadline_ns=1)
    answers = step.run([wrong, good, late])
    assert isinstance(answers[0], InputError) and "owner" in str(answers[0])
    assert isinstance(answers[1], dict)
    assert isinstance(answers[2], DeadlineExceeded) and "deadline_ms" in str(answers[2])
    assert settings.pool
    pool = Pool(settings.pool)
    forget(pool, owner_key(pool.secret, 7))
    assert pool.usage()["bytes"] == 0  # at once, as nobody holds it


def test_a_lost_pool_costs_time_and_no_answer(twin: Path, start: Start) -> None:
    step, settings = start(twin, "twin")
    plain, _ = start(twin, "twin", 0)
    step.run([prompt(twin, 6, 7)])
    assert settings.pool
    for file in settings.pool.iterdir():
        file.write_bytes(b"")
    for got, want in zip(step.run([prompt(twin, 7, 7)]), plain.run([prompt(twin, 7, 7)]), strict=True):
        np.testing.assert_allclose(got["states"], want["states"], atol=1e-4)


@pytest.mark.parametrize("name", ["generate", "prefill_draft"])
def test_whatever_strangers_send_the_others_get_their_answers(twin: Path, tmp_path: Path, name: str) -> None:
    draw = np.random.default_rng(2)
    with starting(name, tmp_path) as start:
        step, _ = start(twin, "twin")
        for batch in (each for seed in range(10) for each in batches(twin, seed, least=0)):
            good, *others = batch
            answered, *answers = step.run([good, *(spoilt(each, draw) for each in others)])
            assert isinstance(answered, dict)
            assert all(isinstance(each, dict | InputError | DeadlineExceeded) for each in answers), answers
