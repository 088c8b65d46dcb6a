"""Candidates that an evaluation reads are those of held-out items: it makes none of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.chain import How, make_ranker
from genrec.errors import InputError
from perf.quality.rank_quality import measure_ranker
from tests.training.ranker.test_ranker import ring_artifact
from training.data.histories import Histories
from training.ranker.candidates import FILE_NAME, load_candidates


def test_none_of_training_are_made_and_any_will_do(tmp_path: Path) -> None:
    artifact = ring_artifact(tmp_path)
    measured = load_candidates(artifact, 0)
    assert {split: len(of) for split, of in measured.items()} == {"train": 0, "validation": 40, "test": 40}
    trained = load_candidates(artifact, 2)
    assert len(trained["train"]) == 80
    for split in ("validation", "test"):
        for name, of in vars(trained[split]).items():
            np.testing.assert_array_equal(getattr(measured[split], name), of)
    assert len(load_candidates(artifact, 0)["train"]) == 80


def test_those_of_a_training_of_fewer_places_are_read(tmp_path: Path) -> None:
    artifact = ring_artifact(tmp_path)
    make_ranker(artifact, how=How(threads=1), changes={"places": 40, "epochs": 1, "negatives": 3})
    file = artifact / "training" / FILE_NAME
    before = file.stat().st_mtime_ns
    assert measure_ranker(artifact)["users"] == 40
    assert file.stat().st_mtime_ns == before


def test_histories_too_short_to_train_on_can_be_measured(tmp_path: Path) -> None:
    artifact = ring_artifact(tmp_path)
    short = Histories(np.arange(2), np.arange(6) + 100, np.arange(3) * 3)
    short.save(artifact / "histories.parquet", ["a", "b"])
    assert len(load_candidates(artifact, 0)["test"]) == 2
    with pytest.raises(InputError, match="histories: have no place to make candidates of for train"):
        load_candidates(artifact, 2)
