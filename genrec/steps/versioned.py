"""What a step has made of each catalogue version: a new one is loaded beside the old one, while requests go on."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from genrec import metrics
from genrec.catalogue import agreement
from genrec.catalogue.agreement import Acknowledgement
from genrec.catalogue.versions import Current, check_files, folder_of, read_current
from genrec.errors import InputError
from genrec.settings import Settings

POLL_S = 0.5  # between looks at the pointer: each wakes a process whose caches are cold
SWAP_POLL_S = 0.05  # while others are still loading what it names
RETIRE_S = 60.0  # no client waits longer for an answer

T = TypeVar("T")
log = logging.getLogger("genrec.catalogue")


class Versioned(Generic[T]):
    """What `load` makes of a version's folder, for every version that a request may still carry.

    `current` is the version for new requests. Where the launcher made a swap folder, a thread follows the artifact's
    pointer in two phases: it loads what is pointed to and acknowledges that; once every process of the server has,
    the version becomes current. What cannot be loaded is refused in the acknowledgement, and nothing else changes.
    The last two versions stay, and any other for RETIRE_S after it was last one of them or pointed to.
    """

    def __init__(self, settings: Settings, step: str, load: Callable[[Path], T]) -> None:
        self._artifact, self._load = settings.artifact, load
        self._process = f"{step}-{os.getpid()}"
        self._versions: dict[int, T] = {}
        self._needed: dict[int, float] = {}  # when a version was loaded, or last had to stay
        self._said = Acknowledgement(-1, (), 0)
        self._stop = threading.Event()
        if settings.swap is None:
            self.current = self._before = read_current(self._artifact).version
            metrics.CATALOGUE_VERSION.set(self.current)
            self._add(self.current)
            return
        self._folder = settings.swap
        self.current, carried = agreement.start_with(self._folder)
        self._before = self.current
        metrics.CATALOGUE_VERSION.set(self.current)
        # Before the pointer is read: either the others wait for this process, or it sees where they go.
        self._acknowledge(-1, "")
        self._add(self.current)
        for version in carried:
            self._try(version)
        self._follow()
        threading.Thread(target=self._keep_following, name="genrec-catalogue", daemon=True).start()

    def of(self, version: int) -> T:
        """What was made of the version that a request carries; 0 is the current one. Raises InputError."""
        try:
            return self._versions[version or self.current]
        except KeyError:
            accepted = f"0, or one that is loaded: {', '.join(map(str, sorted(self._versions)))}"
            raise InputError("ticket", f"says catalogue version {version}", accepted) from None

    @property
    def latest(self) -> tuple[int, T]:
        """The version for new requests, and what was made of it."""
        version = self.current
        return version, self._versions[version]

    def close(self) -> None:
        """Follow no more."""
        self._stop.set()

    def _keep_following(self) -> None:
        """Whatever goes wrong in a look, the next one may be good: no swap ends where one process follows no more."""
        told: set[str] = set()
        under_way = False
        while not self._stop.wait(SWAP_POLL_S if under_way else POLL_S):
            try:
                under_way = self._follow()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem not in told and self._folder.is_dir():  # it is gone when the server ends
                    told.add(problem)
                    log.exception(
                        "%s: could not follow the catalogue, and goes on: %s", self._process, problem
                    )

    def _follow(self) -> bool:
        """One look at the pointer: load, take over, forget. Whether a swap is still under way."""
        pointer = read_current(self._artifact)
        refused = self._said.refused
        if pointer.serial != self._said.serial:
            refused = self._try(pointer.version)
            self._acknowledge(pointer.serial, refused)
        if pointer.version != self.current and self._all_have(pointer):
            self._before, self.current = self.current, pointer.version
            metrics.CATALOGUE_VERSION.set(self.current)
            metrics.CATALOGUE_SWAPS.add()
        self._forget(pointer.version)
        self._acknowledge(pointer.serial, refused)
        return pointer.version != self.current and not self._is_refused(pointer)

    def _try(self, version: int) -> str:
        """Load; why that cannot be, if it cannot."""
        try:
            self._add(version)
        except Exception as error:  # whatever is wrong with the new version, the old one goes on
            metrics.CATALOGUE_REFUSALS.add()
            return str(error) or repr(error)
        return ""

    def _add(self, version: int) -> None:
        if version not in self._versions:
            check_files(self._artifact, version)
            self._versions[version] = self._load(folder_of(self._artifact, version))
            self._needed[version] = time.monotonic()

    def _all_have(self, pointer: Current) -> bool:
        """An older acknowledgement does not count: its process may be about to forget the version."""
        said = agreement.acknowledgements(self._folder).values()
        return all(a.serial == pointer.serial and pointer.version in a.loaded for a in said)

    def _is_refused(self, pointer: Current) -> bool:
        """By any process: the others have loaded it in vain, and there is no haste until the pointer changes."""
        said = agreement.acknowledgements(self._folder).values()
        return any(a.serial == pointer.serial and a.refused for a in said)

    def _forget(self, wanted: int) -> None:
        now = time.monotonic()
        kept = {self.current, self._before, wanted}
        self._needed |= dict.fromkeys(kept, now)
        for version in self._versions.keys() - kept:
            if now - self._needed[version] > RETIRE_S:
                del self._versions[version]

    def _acknowledge(self, serial: int, refused: str) -> None:
        say = Acknowledgement(serial, tuple(sorted(self._versions)), self.current, refused)
        if say != self._said:
            agreement.acknowledge(self._folder, self._process, say)
            self._said = say
