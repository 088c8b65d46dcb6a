"""What is known of users beside what they did, for rankings of who is named by his number alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec.rank.hstu import FEATURES
from genrec.rank.user_features import USERS, numbered, read_users
from genrec.steps.known_features import KnownFeatures


def test_a_feature_that_newer_data_lacks_is_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`genrec data` may have made other columns since; without any file of users, rankings go on too."""
    (tmp_path / "model").mkdir()
    numbers = {"city": {"Rom": 1, "Ulm": 2}, "age": {"3": 3, "7": 4}}
    (tmp_path / "model" / FEATURES).write_text(json.dumps(numbers))
    users = {"user_id": [7, 8], "city": ["Ulm", None], "age_group": ["young", "old"]}
    pq.write_table(pa.table(users), tmp_path / USERS)
    known = KnownFeatures(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [known.of(user).tolist() for user in (7, 8, 7)] == [[2], [], [2]]
    assert caplog.messages == [f"{USERS} has no age, which the ranker has learnt"]


def test_nobody_has_what_is_known_of_another(tmp_path: Path) -> None:
    """In whatever order the file has them."""
    pq.write_table(pa.table({"user_id": [7, 3], "city": ["Ulm", "Rom"]}), tmp_path / USERS)
    found = numbered(read_users(tmp_path / USERS), np.array([1, 3, 5, 7, 9]), {"city": {"Rom": 1, "Ulm": 2}})
    assert found.tolist() == [[0], [1], [0], [2], [0]]
