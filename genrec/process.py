"""This process and others, as the kernel sees them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)  # what /proc says of a process that has ended


def stat_of(pid: int) -> tuple[str, list[str]]:
    """A process's name, and the fields of /proc/<pid>/stat behind it, its state first. GONE when it has ended."""
    head, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return head.partition("(")[2], fields.split()


def started(pid: int) -> int:
    """Start time of a living process in clock ticks since boot; 0 when it is gone or a zombie.

    A pid and its start time name a process for good; a pid alone is given again. Raises OSError where that cannot be
    read: this process may have no descriptor left.
    """
    try:
        _, fields = stat_of(pid)
    except GONE:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def lives(pid: int, since: int) -> bool:
    """Whether the process that `started` then still lives; where that cannot be read, it may."""
    try:
        return started(pid) == since
    except OSError:
        return True


def may_write_any_file() -> None:
    """Lift the limit on a file's size that tritonserver runs under and its stubs inherit (deploy/tritonserver.py)."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def start_forkserver(imported: Sequence[str]) -> None:
    """The process that others are forked from, of the method `forkserver`: it imports these modules for all.

    Ctrl-C goes to all processes of a terminal, and is for the one that ends the others: none of these gets it.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(imported))
    resource_tracker.ensure_running()  # as it starts, it lets the signal through again
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def end_with_parent() -> None:
    """End this process at once when its parent does.

    A tritonserver that ends while it loads models leaves those processes behind. The kernel's own way counts the
    parent's thread, not the parent, and Triton loads models in threads that end.
    """
    parent = os.getppid()
    try:
        process = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # an old kernel, or a container that forbids it: only such a leftover is not prevented
        return
    if parent != _parent_told_of():  # it has ended already, and another was given its child
        os._exit(1)
    threading.Thread(target=_end_after, args=(process,), daemon=True, name="end with parent").start()


def end_with_command() -> None:
    """End this process at once when the one does that started it by `multiprocessing`.

    Its parent may be another, which forks and lives on, or the system's first, where that one has ended already.
    """
    command = multiprocessing.parent_process()
    assert command
    if wait([command.sentinel], 0):  # now, and not after what comes next here
        os._exit(1)
    watch = threading.Thread(
        target=_end_after, args=(command.sentinel,), daemon=True, name="end with command"
    )
    watch.start()


def _parent_told_of() -> int:
    """The pid that Triton gives to a process of a Python model, as its fifth argument; elsewhere the parent's own."""
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return int(words[5]) if words[0].endswith(b"triton_python_backend_stub") else os.getppid()


def _end_after(process: int) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os._exit(1)


def give_back() -> None:
    """Memory that only the start needed: let go of freed heap, and of libraries' pages as they are in their files.

    Importing and compiling touch some 100 MB of code that serving does not (LLVM, readers of Parquet and ONNX). A page
    that is wanted again is mapped from its file. Other files' pages stay: were one unmapped by another thread just now,
    its place could be somebody's memory already, which would be lost. Libraries are kept loaded from here on.
    """
    libc = ctypes.CDLL(None)
    kept = set(filter(_keep_loaded, {path for *_, path in _clean()}))
    for start, end, path in list(_clean()):
        if path in kept:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 4)  # MADV_DONTNEED
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def _keep_loaded(library: str) -> bool:
    """See that a library which is loaded stays so until this process ends."""
    try:
        ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_NOLOAD | os.RTLD_NODELETE)
    except OSError:  # it is no library, or has been unloaded
        return False
    return True


def _clean() -> Iterator[tuple[int, int, str]]:
    """Where files lie that this process may only read and never wrote to, and which: relocated pages are its own."""
    place, file = (0, 0, ""), False
    # A mapped file may have any name, and Triton's interpreter takes text for ASCII.
    for line in os.fsdecode(Path("/proc/self/smaps").read_bytes()).rstrip().split("\n"):
        word, *rest = line.split(maxsplit=5)
        if not word.endswith(":"):
            start, end = (int(address, 16) for address in word.split("-"))
            rights, path = rest[0], rest[4] if len(rest) == 5 else ""
            place, file = (start, end, path), path.startswith("/") and "w" not in rights
        elif word == "Anonymous:" and file and rest[0] == "0":
            yield place
