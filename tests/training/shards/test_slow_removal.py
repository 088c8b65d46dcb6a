"""A checkpoint's removal, which one rank does, may take long too."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.training.ranks import SLOW_S, impatient, on_ranks
from tests.training.shards.test_checkpoint import all_rows, embeddings_of
from training.sharded.world import World
from training.shards import checkpoint


def save_and_go_on(world: World, folder: str) -> None:
    def slow(path: Path, ignore_errors: bool) -> None:
        if path.exists():
            time.sleep(SLOW_S + 2)
        real(path, ignore_errors)

    real, hasty, embeddings = shutil.rmtree, impatient(world), embeddings_of(world, all_rows())
    checkpoint.save(Path(folder), world, embeddings, 5, {}, {})
    shutil.rmtree = slow
    checkpoint.save(Path(folder), hasty, embeddings, 6, {}, {})
    hasty.gather(np.zeros(1))  # as the next step does


@pytest.mark.long
def test_the_removal_of_the_one_before_is_waited_for(tmp_path: Path) -> None:
    on_ranks(2, save_and_go_on, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000006", checkpoint.CURRENT]
