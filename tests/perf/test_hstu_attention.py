"""`genrec bench hstu_attention`: both arms do the same, and the fused one holds no scores."""

from __future__ import annotations

import json

import pytest
import torch

from genrec.compiled import can_be_compiled
from perf.training import hstu_attention as bench


@pytest.mark.long
@pytest.mark.skipif(not can_be_compiled(), reason="there is no g++")
def test_a_cell_has_ratios_and_the_fused_arm_needs_less_memory(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    try:
        bench.main(["--lengths", "1024", "--rounds", "1", "--threads", "1", "--size", "32"])
    finally:
        torch.set_num_threads(before)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [cell["tokens"] for cell in found["cells"]] == [2048, 1024 + 512 + 256 + 128]
    for cell in found["cells"]:
        assert cell["plain_mb"] > 4 * 1024 * 1024 * 2 * 2 / 1e6  # scores of two heads in float32, twice
        assert cell["memory_ratio"] > 2
    assert found["memory_ratio_worst"] == min(cell["memory_ratio"] for cell in found["cells"])


def test_arms_that_differ_end_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.ARMS, "plain", lambda q, *rest: q)
    with pytest.raises(AssertionError, match="not close"):
        bench.main(["--lengths", "64", "--rounds", "1"])
