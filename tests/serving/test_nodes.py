"""Two real servers on hosts of their own share items over Mooncake; a cut link and killed processes cost no answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from build.openvino.engines import build_engines
from genrec.rank.item_tokens import save_item_tokens
from genrec.rank.options import RankerConfig
from perf.kit.hosts import why_none
from tests.nodes.test_mooncake import why_not
from tests.tiny import add_ranker, export_ranker, tiny_artifact

TOKENS = 24  # of an item: a megabyte has room for 170 of the 300


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A ranker whose items need more memory than a node has for them, and more time than the network: so wide a model
    takes 50 ms for those of a ranking. Of one that is faster than the network each node rightly computes them itself.
    """
    artifact = tiny_artifact(tmp_path / "artifact", draft=False, hidden_size=512, intermediate_size=2048)
    save_item_tokens(artifact, np.random.default_rng(0).integers(0, 36, (300, TOKENS)).astype(np.int32))
    add_ranker(artifact, RankerConfig(True, "split", TOKENS))
    export_ranker(artifact)
    build_engines(artifact, "f32")
    return artifact


@pytest.mark.serving
@pytest.mark.skipif(bool(why_not() or why_none()), reason=why_not() or why_none())
def test_two_servers(wide: Path) -> None:
    command = [sys.executable, "-m", "tests.serving.two_nodes", str(wide)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.stdout.endswith("as it should be\n"), run.stdout + run.stderr
