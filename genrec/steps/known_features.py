"""What is known of users in the artifact, as numbers that an HSTU ranker reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArtifactError, InputError
from genrec.rank.hstu import FEATURES
from genrec.rank.user_features import USERS, load_numbers, numbered, read_users

log = logging.getLogger("genrec.known_users")


class KnownFeatures:
    """Reads the file when a user is first asked for. Of an artifact without it, nothing is known of anyone."""

    def __init__(self, artifact: Path) -> None:
        """Raises ArtifactError."""
        # Now, and as they were exported with the weights: a training numbers values anew. Exports of before had none.
        exported = artifact / "onnx"
        of = exported if (exported / FEATURES).exists() else artifact / "model"
        self._users, self._numbers = artifact / USERS, load_numbers(of)

    def check_once(self, given: Sequence[int]) -> None:
        """Raises InputError for two numbers of values of one feature, as far as anything says which is of which."""
        first: dict[str | int, int] = {}
        for number in given:
            feature = self._feature_of.get(number, number)
            if feature in first:
                both = f"{first[feature]} and {number}, which are both of {feature}"
                problem = f"has {number} twice" if first[feature] == number else f"has {both}"
                raise InputError("features", problem, "one value of each feature at most")
            first[feature] = number

    @cached_property
    def _feature_of(self) -> dict[int, str]:
        """Of a value's number."""
        return {number: name for name, values in self._numbers.items() for number in values.values()}

    def of(self, user: int) -> NDArray[np.int32]:
        """Numbers of a user's known values, int32[f], feature by feature. Raises ArtifactError."""
        if not self._users.exists():
            return np.zeros(0, np.int32)
        try:
            users, numbers = self._all
        except ArtifactError as error:
            log.exception("known users")  # where the file lies is nothing for who asks
            raise ArtifactError(USERS, "not a readable file of users; the server's log says why") from error
        row = int(np.searchsorted(users, user))
        if row == len(users) or users[row] != user:
            return np.zeros(0, np.int32)
        return numbers[row][numbers[row] > 0]

    @cached_property
    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Users int64[U], ascending, and of every feature the number of his value, int32[U, F]; 0 where unknown."""
        table = read_users(self._users, self._numbers)
        # As `genrec data` may have made other columns since; as without the file, they are unknown then
        if missing := [name for name in self._numbers if name not in table.column_names]:
            log.warning("%s has no %s, which the ranker has learnt", USERS, ", ".join(missing))
        users = table["user_id"].to_numpy()
        return users, numbered(table, users, self._numbers)
