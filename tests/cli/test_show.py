"""Users by id, or as their source spells them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.show import user_of
from genrec.errors import InputError
from training.data import Histories


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Ids 1 to 3, of which one is another's name."""
    items = np.arange(12)
    Histories(np.array([1, 2, 3]), items, np.array([0, 3, 7, 12])).save(
        tmp_path / "histories.parquet", ["alice", "Bob B.", "1"]
    )
    return tmp_path


@pytest.mark.parametrize(("user", "place"), [("1", 0), ("alice", 0), ("2", 1), ("Bob B.", 1), ("3", 2)])
def test_by_either(artifact: Path, user: str, place: int) -> None:
    found = user_of(artifact, user)
    assert found.user_ids.tolist() == [place + 1]
    assert found.items.tolist() == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]][place]


@pytest.mark.parametrize("user", ["bob", "4", "", "01", "-1", str(2**70)])
def test_a_stranger(artifact: Path, user: str) -> None:
    with pytest.raises(InputError, match=rf"user: {user} is not in the data .*one of 3 users, e\.g\. alice"):
        user_of(artifact, user)
