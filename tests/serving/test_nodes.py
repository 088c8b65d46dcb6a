"""Two real servers share items over Mooncake; a killed process and a killed master cost no answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes.test_mooncake import ALONE, why_not


@pytest.mark.serving
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_servers(tiny_ranker: Path) -> None:
    command = [*ALONE, sys.executable, "-m", "tests.serving.two_nodes", str(tiny_ranker)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.stdout.endswith("as it should be\n"), run.stdout + run.stderr
