"""Files that others may have damaged or swapped: what is opened is a regular file, what is JSON is not bottomless.

What is written here is never seen in part.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from genrec.errors import ArtifactError, InputError
from genrec.words import command

# Files of an artifact that people meet when they leave out a stage, by where they lie in it.
MADE_BY = {
    "histories.parquet": "data", "items.parquet": "data", "catalogue.parquet": "data", "source.json": "data",
    "model/config.json": "train", "model/model.safetensors": "train",
    "model/hstu.json": "train --recipe hstu-ranker", "model/hstu_next.json": "train --recipe hstu-next",
    "validity.safetensors": "build", "valid_ids.safetensors": "build",
    "engines/cuda/engine.json": "build --target cuda", "engines/*/*/engine.json": "build",
}  # fmt: skip

SCRATCH = ".genrec-scratch-"


def open_file(path: Path) -> BinaryIO:
    """A regular file, open for reading bytes. Raises ArtifactError for all else.

    A pipe in its place would be waited for without end, and a device such as /dev/zero read without end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(path, f"cannot be read: {error.strerror}{_remedy(path)}") from error
    except ValueError as error:  # a NUL in the name
        raise ArtifactError(repr(str(path)), f"cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(path, "is not a regular file")
    return os.fdopen(descriptor, "rb")


def _remedy(path: Path) -> str:
    """The end of an error about a file that cannot be read: which command makes it; "" where none does."""
    if (place := next(filter(path.match, MADE_BY), None)) is None or path.match("catalogues/[0-9]*/*"):
        return ""
    artifact, (verb, _, options) = path.parents[place.count("/")], MADE_BY[place].partition(" ")
    # `genrec data` leaves a source.json too: items without one were imported.
    imported = (artifact / "items.parquet").exists() and not (artifact / "source.json").exists()
    if place == "histories.parquet" and imported:
        verb, options = "import CHECKPOINT", "--interactions FILE"
    return f"; {command(verb, artifact, options)} makes it"


def is_absent(path: Path) -> bool:
    """Whether nothing has that name. Where nobody can look, in a folder that is closed to us say, that is not known."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def check_regular(path: Path) -> Path:
    """`path`, for a library that opens it itself. Raises ArtifactError as `open_file` does."""
    open_file(path).close()
    return path


def private(path: str, flags: int) -> int:
    """An opener for `open`: a file that it makes is for this user alone."""
    return os.open(path, flags, 0o600)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Put a file of `text` in the place of `path`: who reads it finds all of the old one or all of the new one.

    It has `mode`, less the umask, before anything is in it. One process at a time. Raises OSError.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # of one that was ended
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
        put(partial, path)
    except BaseException:  # on a full disk it would take what room is left
        partial.unlink(missing_ok=True)
        raise


def put(partial: Path, path: Path) -> None:
    """Give a finished file the name `path`, durably: a loss of power leaves what was there before, or this whole."""
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on the disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_spared(given: Iterable[Path], folder: Path, written: Iterable[str]) -> None:
    """Raises InputError for a file of a person's in the place of one that is `written` to the folder."""
    places = {(folder / name).resolve() for name in written}
    for path in given:
        if path.resolve() in places:
            problem = f"has a name that {folder} needs: it would be written over"
            raise InputError(str(path), problem, "a file of another name, or an artifact in another folder")


def check_writable(folder: Path) -> None:
    """Raises ArtifactError where no file can be made: before work whose end would be lost."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArtifactError(folder, f"cannot be written to: {error.strerror}") from error


@contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """A hidden folder in `folder` to write in, gone at the end; what was left of killed processes goes first.

    Who writes has a lock on his, and it has its name from then on. Raises OSError.
    """
    for left in folder.glob(f"{SCRATCH}*"):
        with suppress(OSError), _locked(left) as dead:
            if dead:
                shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    with _locked(made):
        own = made.rename(folder / f"{SCRATCH}{made.name[1:]}")
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)


@contextmanager
def made_aside(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` in the end; where something fails, that stays as it was.

    One process at a time. Raises OSError.
    """
    partial, old = (folder.with_name(f"{folder.name}.{end}") for end in ("partial", "old"))
    if old.exists() and not folder.exists():  # one was killed between the two renames below
        old.rename(folder)
    for left in (partial, old):  # of one that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """One of those who ask for it at a time, whichever process they are in; the others wait. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether it could be locked: another has it, or its file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except OSError:
        locked = False
    try:
        yield locked
    finally:
        os.close(descriptor)


def read_json(path: Path, as_object: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """What a JSON file holds, each object as `as_object` makes it of its pairs, or a dict. Raises ArtifactError."""
    with open_file(path) as file:
        try:
            return json.load(file, object_pairs_hook=as_object)
        except RecursionError as error:
            raise ArtifactError(path, "is not readable JSON: nested too deep") from error
        except (OSError, ValueError) as error:
            raise ArtifactError(path, f"is not readable JSON: {error}") from error
