"""Prompts that are in the pool whole, the first level's logits behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from genrec import steps
from tests.genrec.steps.kept import Start, equal, prompt, reused, starting
from tests.oracles.twin import TwinPasses

STEP = "generate"

pytestmark = pytest.mark.usefixtures("every_prompt_is_worth_it")


def test_a_prompt_that_is_there_whole_is_not_computed(
    twin: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _ = start(twin, "twin")
    (first,) = step.run([prompt(twin, 6, 7)])
    monkeypatch.setattr(TwinPasses, "prefill", lambda *given: 1 / 0)
    monkeypatch.setattr(TwinPasses, "resume", lambda *given: 1 / 0)
    equal(step.run([prompt(twin, 6, 7)])[0], first)


def test_of_a_prompt_that_another_step_has_left_the_last_token_is_computed(
    twin: Path, tmp_path: Path, start: Start
) -> None:
    """Behind its KV are no logits."""
    plain, _ = start(twin, "twin", 0)
    with starting("prefill_draft", tmp_path / "shared") as start_draft:
        draft, settings = start_draft(twin, "twin")
        draft.run([prompt(twin, 6, 7)])
        step = steps.load(STEP, settings)
        before = reused()
        (got,) = step.run([prompt(twin, 6, 7)])
        step.close()
    equal(got, plain.run([prompt(twin, 6, 7)])[0])
    assert reused() == before + 17
