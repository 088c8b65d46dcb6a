"""What is known of users in the artifact, as numbers that an HSTU ranker reads."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.rank.hstu import FEATURES

USERS = "users.parquet"
log = logging.getLogger("genrec.known_users")


class KnownFeatures:
    """Reads the file when a user is first asked for. Of an artifact without it, nothing is known of anyone."""

    def __init__(self, artifact: Path) -> None:
        self._users, self._numbers = artifact / USERS, artifact / "model" / FEATURES

    def of(self, user: int) -> NDArray[np.int32]:
        """Numbers of a user's known values, int32[f], feature by feature. Raises ArtifactError."""
        if not (self._users.exists() and self._numbers.exists()):
            return np.zeros(0, np.int32)
        try:
            users, numbers = self._all
        except (ArtifactError, OSError, pa.ArrowException, LookupError, ValueError, AttributeError) as error:
            log.exception("known users")  # where the file lies is nothing for who asks
            raise ArtifactError(USERS, "not a readable file of users; the server's log says why") from error
        row = int(np.searchsorted(users, user))
        if row == len(users) or users[row] != user:
            return np.zeros(0, np.int32)
        return numbers[row][numbers[row] > 0]

    @cached_property
    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Users int64[U], ascending, and of every feature the number of his value, int32[U, F]; 0 where unknown."""
        numbers = read_json(self._numbers)
        table = pq.read_table(check_regular(self._users), columns=["user_id", *numbers]).sort_by("user_id")
        found = [
            # A value that the model has not learnt is unknown to it.
            pc.fill_null(
                pa.array(list(values.values()), pa.int32()).take(
                    pc.index_in(table[name].combine_chunks(), pa.array(list(values), pa.string()))
                ),
                0,
            ).to_numpy(zero_copy_only=False)
            for name, values in numbers.items()
        ]
        return table["user_id"].to_numpy(), np.stack(found, 1) if found else np.zeros(
            (len(table), 0), np.int32
        )
