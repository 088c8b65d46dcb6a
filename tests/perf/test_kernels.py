"""Where the time of a pass goes: counted on the real engine, and what is made of the counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.openvino.operations import can_be_compiled
from genrec.engine.instructions import engine_of
from perf.kit.work import Work
from perf.parts.kernels import CountingPasses, measure, shares, table


def test_every_phase_is_counted_and_nothing_is_kept_in_the_artifact(tiny: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "mine"  # servers of other tests keep graphs in the artifact that they share
    shutil.copytree(tiny, artifact)
    cache = engine_of(artifact, "openvino") / "cache"
    before = sorted(cache.glob("*"))
    found, beams = measure(artifact, 9, 8, 2)
    assert len(beams) == 2 and all(0 < count <= 8 for count in beams)
    assert set(found) == {"prefill", "decode"}
    for kinds in found.values():  # single ones are shorter than what OpenVINO can tell apart
        assert "FullyConnected" in kinds and min(kinds.values()) >= 0 and sum(kinds.values()) > 0
    assert sorted(cache.glob("*")) == before


@pytest.mark.skipif(not can_be_compiled("bf16"), reason="no g++, or a CPU without AVX-512")
def test_operations_of_ours_are_named(tiny_bf16: Path) -> None:
    found, _ = measure(tiny_bf16, 9, 8, 2)
    for kinds in found.values():
        assert {"XLinear", "XAttention", "XRotate", "XRows"} <= set(kinds) and "Reference" not in kinds


def test_slices_of_a_pass_are_counted_together(tiny_of_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = CountingPasses._infer

    def counted(self, name, inputs, outputs):
        calls.append(name)
        return plain(self, name, inputs, outputs)

    monkeypatch.setattr(CountingPasses, "_infer", counted)
    monkeypatch.setattr("genrec.engine.openvino.MOST_SCORES", 1)
    monkeypatch.setattr("genrec.engine.openvino.LEAST_BEAMS", 4)
    assert set(measure(tiny_of_nodes, 9, 8, 1)[0]) == {"prefill", "decode"}
    assert calls == 2 * ["prefill", "decode_2", "decode_2", "decode_3", "decode_3"]


def test_shares_and_rates_by_arithmetic() -> None:
    cost = Work(4e9, 9e9, 1e9, 3e9, 1.0, 1, 1, 1, 3)
    spent = {
        "prefill": {"FullyConnected": 60.0, "Subgraph": 39.5, "Concat": 0.5},
        "decode": {"FullyConnected": 20.0, "XLinear": 30.0, "MatMul": 50.0},
    }
    found = shares(spent, cost, 100.0)
    assert found["prefill"] == pytest.approx(
        {
            "ms": 100.0, "FullyConnected": 0.6, "Subgraph": 0.395, "of_gemm_peak": 0.4,
            "weights_of_gemm_peak": 0.5, "attention_of_gemm_peak": 0.25,
        }
    )  # fmt: skip
    assert found["decode"]["weights_of_gemm_peak"] == pytest.approx(1.2)
    lines = table(found).splitlines()
    assert lines[0] == "prefill: 100 ms, 40% of the GEMM rate" and lines[1].split() == [
        "60.0%",
        "FullyConnected",
    ]
