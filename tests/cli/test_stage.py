"""A stage that is made anew: what it says of what was there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.stage import train_stage
from genrec import manifest
from tests.training.files_learnt import save_items
from training.further import LEARNT


def test_a_model_that_is_trained_anew_says_that_its_events_are_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weeks of files that were learnt one by one would be gone without a word."""
    save_items(tmp_path, np.zeros((3, 2), np.int64), (4, 4))
    weights = tmp_path / "model" / "hstu.safetensors"

    def train(key: str) -> list[str]:
        train_stage(tmp_path, "hstu", key, [weights.name], lambda state: weights.write_text(key) and {})
        return capsys.readouterr().out.splitlines()

    (done,) = train("first")
    assert done.startswith("hstu: done")
    made = manifest.read(tmp_path)["hstu"]
    manifest.record(
        tmp_path, "hstu", made["key"], [weights], {**made["facts"], LEARNT: ["monday", "tuesday"]}
    )
    assert train("first") == ["hstu: still good"]
    said, done = train("with other settings")
    assert said == "hstu: is trained anew, without the events of 2 files that it had learnt by --events"
    assert done.startswith("hstu: done") and len(train("yet others")) == 1
