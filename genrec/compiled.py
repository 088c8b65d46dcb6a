"""C++ of ours through g++ and ctypes: compiled in a second or two, then kept for all processes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from genrec.errors import ArtifactError

# Sums may be reordered, for vector registers; NaN and infinity keep their meaning.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros",
         "-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC")  # fmt: skip


def can_be_compiled() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


@cache
def load_compiled(source: Path, more_flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library for this source, these flags and this CPU: from the user's cache, or compiled now.

    Raises ArtifactError where g++ fails.
    """
    flags = (*FLAGS, *more_flags)
    cpu = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), platform.machine())
    key = hashlib.sha256("\n".join([source.read_text(), *flags, cpu]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genrec-triton"
    kept = folder / f"{source.stem}-{key}.so"
    if kept.is_file():
        return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / f"{source.stem}.so"
        done = subprocess.run(["g++", *flags, str(source), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise ArtifactError(source, f"g++ failed:\n{done.stderr}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{kept.name}.{os.getpid()}"
            shutil.copy(made, partial)
            os.replace(partial, kept)  # processes that start together do not see half of it
        except OSError:
            return ctypes.CDLL(str(made))  # no place to keep it; the system holds it while it is loaded
        return ctypes.CDLL(str(kept))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
