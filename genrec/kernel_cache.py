"""Where numba keeps compiled kernels when it has no place of its own.

It keeps them beside the source, or else in the user's cache folder, and where it may write to neither (a read-only
installation, a user without a home) every import of a kernel fails. Then a folder is made for this process and those it
starts, and removed with it; kernels are compiled again at every start. NUMBA_CACHE_DIR names a lasting one.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def provide() -> None:
    """Before numba is imported, which reads the variable then."""
    if VARIABLE in os.environ or _can_write(Path(__file__).parent) or _can_write(_of_the_user()):
        return
    import atexit  # what is rarely needed
    import shutil
    import tempfile

    # Not a folder of a fixed name: numba unpickles what it finds there, and others may write to the temporary folder.
    try:
        made = tempfile.mkdtemp(prefix="genrec-numba-")
    except OSError:  # nowhere to write at all: numba says so to whoever imports it, and a client never does
        return
    owner = os.getpid()  # not those that were forked of it

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    os.environ[VARIABLE] = made


def _of_the_user() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "numba"


def _can_write(folder: Path) -> bool:
    """To the folder, or, where it is not there yet, to the nearest that is."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
