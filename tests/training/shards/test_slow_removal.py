"""A checkpoint's removal, which one rank does, may take long too; what counts already is not removed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from genrec.errors import ArtifactError
from genrec.files import write_whole
from tests.training.ranks import SLOW_S, impatient, on_ranks
from tests.training.shards.test_checkpoint import all_rows, embeddings_of, load_one, rows_of
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


def test_what_fails_once_a_save_counts_removes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path, text: str) -> None:
        write_whole(path, text)
        raise OSError("the disk is gone")

    rows = all_rows(5)
    monkeypatch.setattr(checkpoint, "write_whole", late)
    with pytest.raises(ArtifactError, match="the disk is gone"):
        checkpoint.save(tmp_path, World(), embeddings_of(World(), rows), 6, {}, {})
    assert checkpoint.read_current(tmp_path) == "000000006"
    assert len(rows_of(load_one(tmp_path), 4).ids) == len(rows[4].ids)
