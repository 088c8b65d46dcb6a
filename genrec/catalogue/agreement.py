"""How the processes of a server agree on a catalogue version: in a folder, each says what it has loaded.

The launcher makes the folder (GENREC_SWAP): `artifact`, which one is served; `start`, the version that the server
starts with; and an acknowledgement per process. A new version is given to requests once all acknowledgements name it.
A process that takes the place of a dead one begins with what the others have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from genrec.errors import ArtifactError
from genrec.files import write_whole

ARTIFACT, START, SUFFIX = "artifact", "start", ".json"


class Acknowledgement(NamedTuple):
    """What is `loaded` and `current`; of the pointer last acted upon its `serial`, and why it was `refused`."""

    serial: int
    loaded: tuple[int, ...]
    current: int
    refused: str = ""


def create(folder: Path, artifact: Path, version: int) -> None:
    """Make the folder of a server that starts with a version."""
    folder.mkdir(mode=0o700)
    (folder / START).write_text(str(version))
    (folder / ARTIFACT).write_text(str(artifact.resolve()))


def start_with(folder: Path) -> tuple[int, tuple[int, ...]]:
    """What a process begins with: the version for new requests, and versions that requests under way may carry.

    They are what the others have; where nobody is there yet, the server's first. Raises ArtifactError.
    """
    if others := acknowledgements(folder).values():
        newest = max(others, key=lambda said: said.serial)
        return newest.current, newest.loaded
    try:
        return int((folder / START).read_text()), ()
    except (OSError, ValueError) as error:
        raise ArtifactError(folder / START, f"names no version: {error}") from error


def serves(folder: Path, artifact: Path) -> bool:
    """Whether the folder is of a server of that artifact."""
    try:
        return (folder / ARTIFACT).read_text() == str(artifact.resolve())
    except OSError:  # it ends, or is being made
        return False


def acknowledge(folder: Path, process: str, said: Acknowledgement) -> None:
    """Replace the acknowledgement of a process."""
    write_whole(folder / f"{process}{SUFFIX}", json.dumps(said._asdict()))


def acknowledgements(folder: Path) -> dict[str, Acknowledgement]:
    """Of every process by its name; empty when the server has ended."""
    found = {}
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            said = json.loads(path.read_text())
        except FileNotFoundError:  # the server ends
            continue
        found[path.stem] = Acknowledgement(
            said["serial"], tuple(said["loaded"]), said["current"], said["refused"]
        )
    return found


def forget(folder: Path, pid: int) -> None:
    """Remove what a process said that has died: nobody shall wait for it."""
    for path in folder.glob(f"*-{pid}{SUFFIX}"):
        path.unlink(missing_ok=True)
