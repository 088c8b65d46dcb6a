"""What a step has made of a model with its deltas: the next one is taken in between two requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from genrec import metrics
from genrec.errors import ArtifactError
from genrec.rank.deltas import check_next, folder_of
from genrec.rank.hstu import HstuKind
from genrec.rank.hstu_weights import OF_RATINGS, HstuWeights, load_weights, with_next
from genrec.settings import Settings
from genrec.steps.versioned import POLL_S

T = TypeVar("T")
Stamp = tuple[tuple[str, int, int, int], ...] | None
log = logging.getLogger("genrec.deltas")


class FollowedDeltas(Generic[T]):
    """What `load` makes of the exported weights of a kind, with all deltas that are sound, in order.

    In a server, a thread looks for the next delta. It is checked and loaded beside what serves, and then `current` is
    another object: who holds the former one ends with it. A delta that is refused is told in the log and counted,
    nothing else changes, and it is tried again once its folder or a file in it has changed.
    """

    def __init__(
        self, settings: Settings, load: Callable[[HstuWeights], T], kind: HstuKind = OF_RATINGS
    ) -> None:
        """Raises ArtifactError when what was exported cannot be loaded."""
        self._artifact, self._kind, self._load = settings.artifact, kind, load
        self._tried: Stamp = None  # how the folder of the delta was that was tried last
        weights = load_weights(self._artifact, kind=kind)
        self._export = weights.name
        try:
            while self._waits(weights.delta + 1):
                weights = with_next(self._artifact, weights)
            if kind.deltas:
                check_next(self._artifact, weights.delta + 1)
        except ArtifactError as error:
            self._refuse(weights.delta + 1, error)
        self._take(weights.delta, load(weights))
        self._stop = threading.Event()
        if settings.swap is not None and kind.deltas:
            threading.Thread(target=self._keep_following, name="genrec-deltas", daemon=True).start()

    def close(self) -> None:
        """Follow no more."""
        self._stop.set()

    def _keep_following(self) -> None:
        while not self._stop.wait(POLL_S):
            number = self.current[0] + 1
            if self._waits(number):
                self._try(number)

    def _try(self, number: int) -> None:
        try:
            loaded = self._load(load_weights(self._artifact, number, self._export))
        except Exception as error:  # whatever is wrong with the delta, what serves goes on
            self._refuse(number, error)
        else:
            self._take(number, loaded)
            metrics.DELTAS.add()

    def _take(self, number: int, loaded: T) -> None:
        self.current = (number, loaded)  # in one step: who reads it has both of one delta
        metrics.MODEL_DELTA.set(number)

    def _refuse(self, number: int, error: Exception) -> None:
        metrics.DELTA_REFUSALS.add()
        log.error("delta %d is refused, delta %d goes on: %s", number, number - 1, error)

    def _waits(self, number: int) -> bool:
        """Whether there is a delta of that number, not as it was tried before; it is to be tried now."""
        if not self._kind.deltas:  # what lies there changes another ranker
            return False
        before, self._tried = self._tried, _stamp(folder_of(self._artifact, number))
        return self._tried is not None and self._tried != before


def _stamp(folder: Path) -> Stamp:
    """Another one when the folder or a file in it is put in place or written to; None where there is no folder."""
    try:
        # Without links to nothing
        paths = (folder, *(path for path in sorted(folder.iterdir()) if path.exists()))
        found = [(path, path.stat()) for path in paths]
    except OSError:
        return None
    return tuple((str(path), at.st_ino, at.st_size, at.st_ctime_ns) for path, at in found)
