"""How a command runs: what it says on its way, and that it ends with one line that a person can act on."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from deploy.signals import ended_by_signals
from genrec.errors import GenrecError

FAILED = 2
INTERRUPTED = 128 + signal.SIGINT
UNHEARD = 128 + signal.SIGPIPE  # whoever read our output closed it, as `head` does
FULL = (errno.ENOSPC, errno.EDQUOT)


def start_log(verbose: bool = False) -> None:
    """Our own news to stderr; of libraries, whose loaders tell what they tried, only warnings unless `verbose`."""
    _open_closed()
    logging.basicConfig(
        format="%(message)s", stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING
    )
    logging.getLogger("genrec").setLevel(logging.INFO)


def _open_closed() -> None:
    """A stream that was closed, as by `2>&-`, leads nowhere: Python has none then, which progress cannot be written to,
    and the next file that is opened would have its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def run(command: str, work: Callable[[], object], folders: Iterable[Path] = ()) -> int:
    """Do `work`; the exit code. Errors people can act on become a line on stderr, others keep their traceback.

    SIGTERM, and SIGHUP of a terminal that closes, end it as Ctrl-C does: what it began is cleaned away first. `folders`
    are those it writes to, besides the temporary ones: named when a disk is full.
    """
    try:
        with ended_by_signals():
            work()
        print(end="", flush=True)
        return 0
    except GenrecError as error:
        problem = str(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return UNHEARD
    except OSError as error:
        _drop_output()
        problem = _of_system(error, folders)
    except MemoryError as error:
        problem = f"memory: is not enough: {error or 'the system gives no more'}"
    except Exception as error:
        if "can't allocate memory" in str(error):  # torch has no type of its own for it
            problem = f"memory: is not enough: {str(error).splitlines()[0]}"
        else:
            problem = _of_safetensors(error, folders)
    print(f"{command}: {problem}", file=sys.stderr)
    return FAILED


def _drop_output() -> None:
    """Where stdout takes no more, let go of what it still holds: at its end Python would try again, and say so."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_system(error: OSError, folders: Iterable[Path]) -> str:
    """The files, what the system says, and on a full disk which one that is."""
    files = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    text = error.strerror or str(error)
    said = f"{files}: {text}" if files else text
    return f"{said} ({_room(error.filename, folders)})" if error.errno in FULL else said


def _of_safetensors(error: Exception, folders: Iterable[Path]) -> str:
    """The same for a write that failed inside of safetensors, which has a type of its own. Raises any other error."""
    library = sys.modules.get("safetensors")  # what has not imported it has no error of it, and may lack it
    said = str(error)
    number = said.partition("(os error ")[2].partition(")")[0]
    if library is None or not isinstance(error, library.SafetensorError) or not number.isdecimal():
        raise error
    name = said.rpartition(" at path ")[2].strip('"') if " at path " in said else None
    return _of_system(OSError(int(number), os.strerror(int(number)), name), folders)


def _room(file: object, folders: Iterable[Path]) -> str:
    """The room left on every file system that a command writes to."""
    places = [Path(os.fsdecode(file))] if isinstance(file, str | bytes) else []
    left = {}
    for place in [*places, *folders, Path(tempfile.gettempdir()), Path("/dev/shm")]:
        mount = place.absolute()
        while not mount.exists() or not mount.is_mount():
            mount = mount.parent
        left[str(mount)] = shutil.disk_usage(mount).free
    return "left: " + ", ".join(f"{free / 1e6:.0f} MB on {mount}" for mount, free in left.items())
