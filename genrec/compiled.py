"""What of ours is compiled: in some seconds, by one process, then kept for all processes of a user."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from genrec.errors import ArtifactError
from genrec.kernel_cache import VARIABLE

# Sums may be reordered, for vector registers; NaN and infinity keep their meaning.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros",
         "-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")  # fmt: skip


def can_be_compiled() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


def run(command: list[str], kept_open: tuple[int, ...] = ()) -> str:
    """What a compiler says, which has these descriptors too. Raises ArtifactError where it is not there or fails."""
    if shutil.which(command[0]) is None:
        raise ArtifactError(command[0], "is not on PATH, and is needed to compile")
    done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=kept_open)
    if done.returncode:
        raise ArtifactError(command[-1], f"{command[0]} failed:\n{done.stderr}{done.stdout}")
    return done.stderr + done.stdout


def compiled(name: str, sources: Iterable[Path], command: list[str]) -> Path:
    """The library that `command` makes of `sources`: from the user's cache, or made now, once for all who wait for it.

    The command lacks its compiler, g++, and where its output goes. Raises ArtifactError where g++ fails.
    """
    of = [run(["g++", "--version"]), *command, *(each.read_text() for each in sources)]
    kept = _folder() / f"{name}-{_digest(of)}.so"
    with open(kept.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_file():
            partial = kept.with_suffix(".partial")
            # A compiler outlives us where we are killed, and has the lock then: nobody writes beside it.
            run(["g++", *command, "-o", str(partial)], (lock.fileno(),))
            os.replace(partial, kept)
    return kept


def first_alone(name: str, of: list[str], make: Callable[[], None], forget: Callable[[], None]) -> None:
    """Call `make`, which has numba compile `of` this and keep it: one process at a time, until one has done so.

    Processes that start together would otherwise all compile the same, on the same cores. `forget` drops what was kept
    of anything else by this name: numba looks at a kernel's own file, not at those whose numbers and functions it uses.
    Who comes after one that was ended goes on with what that one kept.
    """
    folder, digest = Path(os.environ.get(VARIABLE) or _folder()), _digest(of)
    folder.mkdir(parents=True, exist_ok=True)
    begun, done = folder / f"{name}.begun", folder / f"{name}.done"
    if _lines(str(done)) == [digest]:
        return make()
    with open(done.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _lines(str(begun)) != [digest]:
            done.unlink(missing_ok=True)
            forget()
            begun.write_text(digest)
        make()
        done.write_text(digest)


@cache
def load_compiled(source: Path, headers: tuple[Path, ...] = ()) -> ctypes.CDLL:
    """The library for this source, the headers of ours that it includes, and this CPU.

    Raises ArtifactError where g++ fails.
    """
    cpu = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), platform.machine())
    named = f"-DCPU_{_digest([cpu])}"  # -march=native differs from CPU to CPU
    command = [*FLAGS, named, str(source)]
    return ctypes.CDLL(str(compiled(source.stem, [source, *headers], command)))


@cache
def _folder() -> Path:
    """Where libraries are kept: the user's cache, or, where nothing can be written there, for this process alone."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genrec-triton"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # the latter from a user without a home
        made = tempfile.mkdtemp(prefix="genrec-compiled-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return Path(made)


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
