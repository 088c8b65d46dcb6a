"""A swap that is ended while it waits leaves the catalogue as it was, and no flood of lines."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from build.catalogue import remove_items
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import read_current
from tests.serving.processes import until

ROOT = Path(__file__).resolve().parents[2]
# Who starts the tests in the background has them ignore SIGINT, and children inherit that.
SWAP = """
import signal, sys
from pathlib import Path
from deploy.switch import switch
from genrec import progress
progress.DELAY_S = 0.0  # as where it takes long
signal.signal(signal.SIGINT, signal.default_int_handler)
switch(Path(sys.argv[1]), 2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_swap_that_is_ended_puts_the_pointer_back(tiny: Path, tmp_path: Path, number: int) -> None:
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    remove_items(artifact, Catalogue.load(artifact / CATALOGUE, titles=False).item_ids[:1])
    waiting_for = leftovers.SHM / f"{leftovers.own_prefix()}{leftovers.SWAP}"
    agreement.create(waiting_for, artifact, 1)  # a server that starts
    try:
        swap = subprocess.Popen([sys.executable, "-c", SWAP, artifact], cwd=ROOT, stderr=subprocess.PIPE)
        until(lambda: read_current(artifact).version == 2)
        swap.send_signal(number)
        _, said = swap.communicate(timeout=60)
    finally:
        shutil.rmtree(waiting_for)
    assert swap.returncode != 0
    assert read_current(artifact).version == 1
    assert b"version 2:" not in said
