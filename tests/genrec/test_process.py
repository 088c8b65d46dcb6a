"""What is given back to the kernel is gone from memory, and nothing else is; who loses his parent ends."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.tritonserver import state_of
from genrec.process import give_back, lives, started, stat_of
from tests.serving.processes import until


def resident() -> int:
    """Bytes of mapped files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


def test_pages_of_libraries_leave_and_come_back() -> None:
    import openvino

    before = resident()
    give_back()
    assert resident() < before
    assert openvino.Core().available_devices


def test_what_may_be_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"a" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        mapped[0] = ord("b")
        give_back()
        assert mapped[0] == ord("b")


def test_memory_that_takes_a_file_s_place_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """A file of four pages is mapped and unmapped again and again, and memory is wanted where it was."""
    path, size, zeroed, ended = tmp_path / "graph.blob", 4 * mmap.PAGESIZE, [], threading.Event()
    path.write_bytes(b"a" * size)

    def change_places() -> None:
        with path.open("rb") as file:
            while not ended.is_set():
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
                    time.sleep(0.01)
                with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                    memory[:] = b"b" * size
                    time.sleep(0.01)
                    zeroed.append(memory[:].count(0))

    thread = threading.Thread(target=change_places)
    thread.start()
    while len(zeroed) < 20:
        give_back()
    ended.set()
    thread.join()
    assert sum(zeroed) == 0


CHILD = """
import sys, time
from deploy.tritonserver import state_of
from genrec.process import end_with_parent
end_with_parent()
print("watches", flush=True)
time.sleep(600)
"""
# As Triton does: by a thread that ends while the child lives on.
PARENT = """
import subprocess, sys, threading
made = []
def start():
    made.append(subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE))
thread = threading.Thread(target=start)
thread.start()
thread.join()
made[0].stdout.readline()
print(made[0].pid, flush=True)
made[0].wait()
"""


def test_a_name_may_look_like_the_fields_behind_it(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        try:
            name, (state, parent, *_) = stat_of(child.pid)
        finally:
            child.kill()
    assert (name, int(parent)) == (program.name, os.getpid()) and state in "RSD"
    with pytest.raises(OSError, match=str(child.pid)):
        stat_of(child.pid)


def test_a_child_ends_with_its_parent_not_with_the_thread_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        born = started(child)
        assert born and parent.poll() is None
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: started(child) != born)


def test_who_has_ended_does_not_live_though_nobody_has_looked() -> None:
    """What he held, as places in a pool, is not his any more: his parent may never look."""
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        since = started(child.pid)
        assert since and lives(child.pid, since)
        child.kill()
        until(lambda: state_of(child.pid) == "Z")
        assert started(child.pid) == 0 and not lives(child.pid, since)


def test_who_cannot_be_looked_at_may_live() -> None:
    """A process without a descriptor left cannot read /proc, and must not take the others' places for free."""
    me, since = os.getpid(), started(os.getpid())
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert lives(me, since) and not lives(me, since + 1) and not lives(child.pid, since)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open("/dev/null", os.O_RDONLY)
    os.close(used)  # the lowest that is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        assert lives(me, since) and lives(me, since + 1) and state_of(me) == "?"
        with pytest.raises(OSError, match="Too many open files"):
            started(me)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert state_of(child.pid) == ""
