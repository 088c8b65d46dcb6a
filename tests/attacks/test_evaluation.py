"""`evaluate` measures what there is: a catalogue of fewer than ten items, a sample of one user."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from build.catalogue import remove_items
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import Current, point
from genrec.errors import InputError
from perf.quality.quality import measure
from training.data.histories import Histories
from training.generator.evaluate import by_popularity

ITEMS = 6


@pytest.fixture
def small(tiny: Path, tmp_path: Path) -> Path:
    """`tiny` with a current version of its ITEMS least popular items, and four users who saw three of them."""
    artifact = Path(shutil.copytree(tiny, tmp_path / "small"))
    ids = by_popularity(Catalogue.load(artifact / "catalogue.parquet"))[::-1]
    point(artifact, Current().to(remove_items(artifact, ids[ITEMS:])))
    seen = np.concatenate([np.roll(ids[:ITEMS], user)[:3] for user in range(4)])
    histories = Histories(np.arange(4), seen, np.arange(5) * 3)
    histories.save(artifact / "histories.parquet", [str(user) for user in range(4)])
    return artifact


def test_fewer_items_than_ten_are_measured(small: Path) -> None:
    figures = measure(small, beam_width=32, remove_seen=False)
    assert figures["model"]["HR@10"] == 1  # all of the items there are
    assert measure(small, beam_width=ITEMS, remove_seen=False)["model"]["HR@10"] == 1


def test_baselines_answer_from_the_version_that_is_served(small: Path) -> None:
    figures = measure(small, beam_width=32, remove_seen=False)
    for name in ("popularity", "transition counts"):
        assert figures[name]["HR@10"] == figures[name]["coverage@10"] == 1, name


def test_a_beam_that_cannot_find_them_is_named(small: Path) -> None:
    with pytest.raises(InputError, match=rf"^beam_width: is 5 \(accepted: {ITEMS} or more"):
        measure(small, beam_width=ITEMS - 1, remove_seen=False)


@pytest.mark.parametrize("users", [0, -1])
def test_a_sample_of_no_users_is_refused(small: Path, users: int) -> None:
    with pytest.raises(InputError, match=rf"^users: is {users} \(accepted: 1 or more; there are 4\)"):
        measure(small, beam_width=32, remove_seen=False, users=users)
