"""What a model computes that is no number is told as its fault, by every way of answering; others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.errors import ModelError
from genrec.settings import Settings
from genrec.steps.beam_search_of_logits import BeamSearchOfLogits
from tests.oracles.twin import twin_artifact

WIDTH = 9


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", (7, 6, 5), 60)


@contextmanager
def local(artifact: Path, decoder: str) -> Iterator[tuple[Callable[[int], Any], dict[str, Any]]]:
    """What answers a history of so many items, and its steps."""
    ids = load_catalogue(artifact, load_config(artifact)).item_ids
    with LocalRecommender(artifact, WIDTH, "twin", decoder=decoder) as runtime:
        yield lambda items: runtime.recommend([ids[:items].tolist()], 3)[0], runtime.runtime._steps


def test_logits_in_the_arena(artifact: Path) -> None:
    with local(artifact, "staged") as (answer, steps):
        engine = steps["prefill"]._engine
        compute = engine.prefill

        def spoilt(tokens: Any, lengths: Any, region: Any) -> None:
            compute(tokens, lengths, region)
            engine.layout.first_logits(region)[:] = np.nan

        engine.prefill = spoilt
        failed = answer(2)
        assert isinstance(failed, ModelError) and str(failed).startswith("logits: NaN")
        arena = steps["prefill"]._arena
        assert arena.usage()["held"] == arena.usage()["idle"] == 0
        engine.prefill = compute
        assert len(answer(2)["item_ids"][0]) == 3


def test_logits_that_come_as_a_tensor(artifact: Path) -> None:
    step = BeamSearchOfLogits(Settings(artifact, artifact / "no-arena", WIDTH, "twin"))
    asked = {"ticket": np.array([[3, 3, 0, 0, 0, 0]]), "excluded": np.array([[-1]], np.int32)}
    good = np.zeros((1, 1, 7), np.float32)
    found, failed = step.run([asked | {"logits": good}, asked | {"logits": good * np.nan}])
    assert isinstance(found, dict) and isinstance(failed, ModelError)


def test_states_of_a_draft(artifact: Path) -> None:
    """Of the longest prompt of a batch."""
    with local(artifact, "draft") as (_, steps):
        step = steps["prefill_draft"]
        compute = step._engine.draft_states

        def spoilt(tokens: Any, lengths: Any) -> Any:
            states = compute(tokens, lengths)
            states[lengths == 6] = np.nan
            return states

        step._engine.draft_states = spoilt
        tokens = np.zeros((1, 15), np.int32)
        found, failed = step.run(
            [{"tokens": tokens, "ticket": np.array([[3, length, 0, 0, 0, 1]])} for length in (3, 6)]
        )
    assert np.isfinite(found["states"]).all()
    assert isinstance(failed, ModelError) and str(failed).startswith("states: NaN")


def test_logits_of_a_draft(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local(artifact, "draft") as (answer, steps):
        kind, drafter = type(steps["draft_beam"]._drafter), steps["draft_beam"]._drafter
        logits = drafter.logits
        monkeypatch.setattr(kind, "logits", lambda self, *given: logits(*given) * np.nan)
        failed = answer(2)
    assert isinstance(failed, ModelError) and str(failed).startswith("logits: NaN")
