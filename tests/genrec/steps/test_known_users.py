"""A user's history from the artifact: what the trainers read of him, whichever row group he is in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from genrec.errors import ArtifactError, InputError
from genrec.settings import MOST_VALUES
from genrec.steps import known_users
from genrec.steps.known_users import HISTORIES, KnownUsers
from training.data import histories as data
from training.data.histories import Histories


def asks(user: int, **more: object) -> dict[str, np.ndarray]:
    return {"user_id": np.array([[user]])} | {name: np.array([values]) for name, values in more.items()}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Histories:
    """41 users, each third number from -5, in groups of 8, fewer of which are kept in memory than there are."""
    monkeypatch.setattr(data, "GROUP_USERS", 8)
    monkeypatch.setattr(known_users, "GROUPS", 2)
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 30, 41)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    total = int(offsets[-1])
    histories = Histories(
        np.arange(41) * 3 - 5,
        draw.integers(0, 10**12, total),
        offsets,
        np.sort(draw.integers(0, 10**9, total)),
    )
    histories.save(tmp_path / HISTORIES, [""] * 41)
    return histories


def test_every_user_has_his_own(saved: Histories, tmp_path: Path) -> None:
    known = KnownUsers(tmp_path)
    times = np.split(saved.times, saved.offsets[1:-1]) if saved.times is not None else []
    for place in np.random.default_rng(1).permutation(41):
        user = int(saved.user_ids[place])
        found = known.complete(asks(user), ["times", "ratings"])
        np.testing.assert_array_equal(found["history"], saved.rows()[place][None])
        np.testing.assert_array_equal(found["times"], times[place][None])
        assert "times" not in known.complete(asks(user)) and "ratings" not in found


def test_what_a_request_brings_counts(saved: Histories, tmp_path: Path) -> None:
    known = KnownUsers(tmp_path)
    brought = asks(int(saved.user_ids[0]), history=[1, 2])
    assert known.complete(brought, ["times"]) is brought


def test_who_gives_neither_history_nor_user_is_told_of_both(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"history: is missing \(accepted: int64\[n\], or the user_id of"):
        KnownUsers(tmp_path).complete({})


@pytest.mark.parametrize("user", [-(2**63), -6, -4, 0, 116, 2**63 - 1])
def test_a_stranger_is_told_so(saved: Histories, tmp_path: Path, user: int) -> None:
    assert user not in saved.user_ids
    with pytest.raises(InputError, match=rf"user_id: is {user}, who is not in histories.parquet"):
        KnownUsers(tmp_path).complete(asks(user))


def test_without_the_file_a_history_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"history: is missing .*histories\.parquet is not in the artifact"):
        KnownUsers(tmp_path).complete(asks(1))


@pytest.mark.parametrize("damage", ["cut", "of nobody", "without statistics", "one item each", "others"])
def test_a_damaged_file_is_named(saved: Histories, tmp_path: Path, damage: str) -> None:
    path = tmp_path / HISTORIES
    whole = pq.read_table(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "of nobody":
        pq.ParquetWriter(path, whole.schema).close()
    elif damage == "without statistics":
        pq.write_table(whole, path, write_statistics=False)
    elif damage == "one item each":
        place = whole.schema.get_field_index("items")
        pq.write_table(whole.set_column(place, "items", whole["user_id"]), path)
    else:
        pq.write_table(whole.select(["user"]), path)
    with pytest.raises(ArtifactError, match=r"^histories\.parquet: not a readable histories file; the"):
        KnownUsers(tmp_path).complete(asks(1))


def test_a_longer_history_than_a_request_may_bring_is_cut(tmp_path: Path) -> None:
    items = np.arange(MOST_VALUES + 5)
    Histories(np.array([7]), items, np.array([0, len(items)])).save(tmp_path / HISTORIES, ["7"])
    found = KnownUsers(tmp_path).complete(asks(7))
    np.testing.assert_array_equal(found["history"], items[None, 5:])
