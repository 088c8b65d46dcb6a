"""Finding the server's files and laying out what it needs in a run folder.

A `tritonserver` on PATH is used with the backends beside it. Otherwise the binary inside the nvidia-pytriton
wheel is started directly; it is a test server (2.51.0, Python backend only, open CVEs: hazard H9).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import genrec
from genrec.errors import ArtifactError

LIBRARY = "libtriton_python.so"
STUB = "triton_python_backend_stub"
UTILITIES = "triton_python_backend_utils.py"


@dataclass(frozen=True)
class ServerFiles:
    """The binary, the Python backend's three files, and folders for LD_LIBRARY_PATH."""

    binary: Path
    library: Path
    stub: Path
    utilities: Path
    library_path: tuple[Path, ...] = ()


def find_server() -> ServerFiles:
    """The server on PATH, else the wheel's. Raises ArtifactError naming what is missing."""
    on_path = shutil.which("tritonserver")
    files = _installed(Path(on_path).resolve()) if on_path else _from_wheel()
    for path in (files.binary, files.library, files.stub, files.utilities):
        if not path.is_file():
            raise ArtifactError(path, "missing; needed to start tritonserver")
    return files


def _installed(binary: Path) -> ServerFiles:
    backend = binary.parent.parent / "backends" / "python"
    return ServerFiles(binary, backend / LIBRARY, backend / STUB, backend / UTILITIES)


def _from_wheel() -> ServerFiles:
    spec = importlib.util.find_spec("pytriton")  # found, not imported: its API is not used
    if spec is None or not spec.origin:
        raise ArtifactError("tritonserver", "not on PATH, and nvidia-pytriton is not installed")
    package = Path(spec.origin).parent
    root, version = package / "tritonserver", f"{sys.version_info.major}.{sys.version_info.minor}"
    backend = root / "backends" / "python"
    libraries = (package.parent / "nvidia_pytriton.libs", *_libpython_folder())
    stub = root / "python_backend_stubs" / version / STUB
    return ServerFiles(root / "bin" / "tritonserver", backend / LIBRARY, stub, backend / UTILITIES, libraries)


def _libpython_folder() -> tuple[Path, ...]:
    """The running interpreter's own libpython, when it has a shared one; else the system's is used."""
    folder = Path(sys.base_prefix) / "lib"
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    return (folder,) if (folder / name).is_file() else ()


def library_path(files: ServerFiles) -> str:
    """LD_LIBRARY_PATH for the server and its stubs."""
    return os.pathsep.join(
        [*map(str, files.library_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    )


def check_libraries(files: ServerFiles) -> None:
    """Ask the loader whether all resolves. Raises ArtifactError; Triton would only say that a stub died."""
    environment = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_LIBRARY_PATH": library_path(files)}
    for program in (files.binary, files.stub):
        listing = subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=False
        ).stdout
        missing = [line.split()[0] for line in listing.splitlines() if "not found" in line]
        if missing:
            raise ArtifactError(program, f"shared libraries not found: {', '.join(missing)}")


def check_numpy(files: ServerFiles) -> None:
    """Whether the wheel's stub can read tensors: of numpy 2 it gets other numbers than were sent, without a word.

    Raises ArtifactError. It takes the packages of this interpreter, and none of PYTHONPATH.
    """
    if "pytriton" not in files.stub.parts:
        return
    ask = [
        sys.executable,
        "-I",
        "-c",
        "import importlib.metadata; print(importlib.metadata.version('numpy'))",
    ]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    if said and int(said.partition(".")[0]) >= 2:
        limit = (
            "nvidia-pytriton's Python backend reads tensors with numpy below 2 alone: pip install 'numpy<2'"
        )
        raise ArtifactError(sys.executable, f"has numpy {said}; {limit}")


def lay_out_backends(files: ServerFiles, backends: Path) -> None:
    """`<backends>/python` of links.

    The wheel's stub embeds Python isolated: PYTHONPATH is ignored, and packages come from the `python3` that
    is first on PATH. Its own backend folder is on sys.path, though, so a link there gives the stubs the very
    `genrec` that the launcher runs, installed or not.
    """
    folder = backends / "python"
    folder.mkdir(parents=True)
    links = {
        LIBRARY: files.library,
        STUB: files.stub,
        UTILITIES: files.utilities,
        "genrec": Path(genrec.__file__).parent,
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
