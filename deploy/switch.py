"""Switching an artifact, and the servers of this machine that serve it, to another version of its catalogue."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.signals import ended_by_signals
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.catalogue.agreement import Acknowledgement
from genrec.catalogue.soundness import verify
from genrec.catalogue.versions import Current, folder_of, locked, point, read_current, versions_of
from genrec.errors import ArtifactError, GenrecError
from genrec.progress import counting

LOOK_S = 0.05
PATIENCE_S = 300.0  # for servers to load a version, or to come back from a restart


class NotSwapped(GenrecError):
    """A server did not take the version in time."""


def switch(artifact: Path, version: int | None = None) -> Current:
    """To `version`, the newest if none; returns once no new request of a running server gets another.

    A version that is not sound, or that a server refuses, changes nothing. Raises InputError, ArtifactError naming
    the file, NotSwapped.
    """
    with ended_by_signals(), locked(artifact):
        return _move(artifact, lambda now: now.to(versions_of(artifact)[-1] if version is None else version))


def roll_back(artifact: Path) -> Current:
    """To the version before the last switch; otherwise as `switch`."""
    with ended_by_signals(), locked(artifact):
        return _move(artifact, Current.back)


def servers_of(artifact: Path) -> list[Path]:
    """Swap folders of the servers of this machine (of this container) that serve the artifact."""
    return [
        folder for folder in leftovers.of_the_living(leftovers.SWAP) if agreement.serves(folder, artifact)
    ]


def _move(artifact: Path, to: Callable[[Current], Current]) -> Current:
    """Point to the version; when a server will not have it, or the wait is broken off, point back."""
    before = read_current(artifact)
    after = to(before)
    verify(artifact, after.version)
    try:
        point(artifact, after)
        _wait(artifact, after)
    except BaseException:
        point(artifact, before._replace(serial=after.serial + 1, highest=after.highest))
        raise
    return after


def _wait(artifact: Path, wanted: Current) -> None:
    """Until every process of every server has the version as its current one."""
    deadline = time.monotonic() + PATIENCE_S
    with counting(f"version {wanted.version}", 0, "process", leave=False) as bar:
        while waiting := _behind(artifact, wanted, bar):
            if time.monotonic() > deadline:
                problem = f"not loaded after {PATIENCE_S:.0f} s by {', '.join(waiting)}"
                raise NotSwapped(f"{folder_of(artifact, wanted.version)}: {problem}")
            time.sleep(LOOK_S)


def _behind(artifact: Path, wanted: Current, bar: Any) -> list[str]:
    """The processes that are not there yet. Raises ArtifactError when one refuses."""
    waiting, processes = [], 0
    for folder in servers_of(artifact):
        said = agreement.acknowledgements(folder)
        processes += max(len(said), 1)
        if not said:
            waiting.append(f"a server that starts ({folder.name})")
        for process, acknowledgement in said.items():
            if not _follows(process, acknowledgement, wanted):
                waiting.append(process)
    bar.total = processes
    bar.update(processes - len(waiting) - bar.n)
    return waiting


def _follows(process: str, said: Acknowledgement, wanted: Current) -> bool:
    if said.serial != wanted.serial:
        return False
    if said.refused:
        path, _, problem = said.refused.partition(": ")
        raise ArtifactError(path, f"{problem} (refused by {process})")
    return said.current == wanted.version
