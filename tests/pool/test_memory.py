"""What is mapped stays while somebody looks at it, and no lock goes with it."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genrec.pool.mapping import Mapping
from genrec.pool.memory import mapped

ANOTHER = """
import sys
from pathlib import Path
from genrec.pool.mapping import Busy, Mapping
try:
    Mapping(Path(sys.argv[1])).lock()
except Busy:
    print("busy")
"""


def test_a_mapping_that_goes_leaves_the_lock_to_the_other_of_its_process(folder):
    held, other = Mapping(folder), Mapping(folder)
    held.lock()
    del other
    gc.collect()
    asked = subprocess.run(
        [sys.executable, "-c", ANOTHER, str(folder)], capture_output=True, text=True, check=True
    )
    held.unlock()
    assert asked.stdout == "busy\n"
    asked = subprocess.run(
        [sys.executable, "-c", ANOTHER, str(folder)], capture_output=True, text=True, check=True
    )
    assert asked.stdout == ""


def test_memory_outlives_its_file_and_descriptor_as_long_as_a_view_of_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * 10_000)
    descriptor = os.open(path, os.O_RDWR)
    view = mapped(descriptor)[5000:6000]
    os.close(descriptor)
    path.unlink()
    assert set(view.tolist()) == {ord("a")} and str(path) in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_an_empty_file_is_no_memory(tmp_path):
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    with pytest.raises(ValueError, match="empty"):
        mapped(descriptor)
    os.close(descriptor)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="mapped"):
        mapped(descriptor)
    os.close(descriptor)
