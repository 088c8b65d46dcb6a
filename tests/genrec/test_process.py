"""What is given back to the kernel is gone from memory, and can still be read; who loses his parent ends."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

from genrec.process import give_back, started
from tests.serving.processes import until

SIZE = 32 << 20


def resident() -> int:
    """Bytes of mapped files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


def test_pages_of_a_graph_leave_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "graph with a space.blob"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = resident()
        assert sum(mapped[:: mmap.PAGESIZE]) == 0 and resident() - before > 0.9 * SIZE
        give_back()
        assert resident() - before < 0.1 * SIZE
        assert mapped[1000] == 1000 % 256


def test_what_may_be_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"a" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        mapped[0] = ord("b")
        give_back()
        assert mapped[0] == ord("b")


CHILD = """
import sys, time
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


def test_a_child_ends_with_its_parent_not_with_the_thread_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        born = started(child)
        assert born and parent.poll() is None
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: started(child) != born, 30)
