"""Two users of an artifact with an HSTU ranker, who are known by their numbers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.rank.hstu import FEATURES
from genrec.rank.user_features import USERS
from training.data.histories import history_table

EVENTS = {
    "ratings": np.array([[5, 1, 3, 4, 2]], np.int32),
    "times": np.array([[100, 100, 250, 900, 4000]]),
    "features": np.array([[2, 5]], np.int32),
}
KNOWN, STRANGER = 7, 8  # users of the artifact; of the second no features are known


def with_known_users(of: Path, items: list[int], folder: Path) -> Path:
    """A copy in `folder`, where both have taken the first five items."""
    artifact = Path(shutil.copytree(of, folder / "artifact"))
    ratings, times = (np.tile(EVENTS[name][0], 2) for name in ("ratings", "times"))
    table = history_table(
        np.array([KNOWN, STRANGER]), np.tile(items[:5], 2), np.array([5, 5]), pa.array(["anna", "bert"]), times,
        ratings,
    )  # fmt: skip
    pq.write_table(table, artifact / "histories.parquet")
    users = {
        "user_id": [KNOWN, STRANGER],
        "city": ["Ulm", None],
        "age": ["7", "unheard of"],
        "sex": [None, None],
    }
    pq.write_table(pa.table(users, schema=pa.schema(
        [("user_id", pa.int64()), *((name, pa.string()) for name in ("city", "age", "sex"))]
    )), artifact / USERS)  # fmt: skip
    numbers = {"city": {"Rom": 1, "Ulm": 2}, "age": {"3": 3, "5": 4, "7": 5}, "sex": {"F": 6, "M": 7}}
    (artifact / "model" / FEATURES).write_text(json.dumps(numbers))
    return artifact
