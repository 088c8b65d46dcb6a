"""An engine runs in the fastest instruction set that its CPU has, whatever CPU it was built on, and says which."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from build.openvino.operations import can_be_compiled
from deploy.instructions import NODES, instruction_set
from deploy.launcher import RunningServer
from genrec.engine import instructions
from genrec.engine.instructions import AVX2, AVX512, AVX512_BF16, SETS, chosen, engine_of, features, sets_of
from genrec.engine.openvino import OpenVinoPasses
from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.errors import ArtifactError
from genrec.settings import Settings

AMX = next(each.needs for each in SETS if each.name == "amx_bf16")
pytestmark = pytest.mark.skipif(not can_be_compiled("f32"), reason="no g++, or a CPU without AVX2")


def pretend(patch: pytest.MonkeyPatch, has: frozenset[str]) -> None:
    patch.setattr(instructions, "features", lambda: has)


@pytest.mark.parametrize(
    ("kv_type", "has", "name"),
    [
        ("f32", AVX2, "avx2_f32"), ("f32", AVX512, "avx512_f32"), ("f32", AMX, "avx512_f32"),
        ("bf16", AVX512, "avx512_rounded_bf16"), ("bf16", AVX512_BF16, "avx512_bf16"), ("bf16", AMX, "amx_bf16"),
    ],
)  # fmt: skip
def test_the_fastest_set_that_a_cpu_has_is_chosen(tmp_path, monkeypatch, kv_type, has, name) -> None:
    pretend(monkeypatch, has)
    assert chosen(tmp_path, kv_type) is None  # nothing was compiled
    for each in sets_of(kv_type):
        (tmp_path / each.library).touch()
    found = chosen(tmp_path, kv_type)
    assert found is not None and found.name == name


def test_bf16_is_refused_by_name_where_openvino_would_make_it_f32(tmp_path, monkeypatch) -> None:
    pretend(monkeypatch, AVX2)
    for each in sets_of("bf16"):
        (tmp_path / each.library).touch()
    with pytest.raises(ArtifactError, match=r"for CPUs with amx_bf16, avx512_bf16, avx512_rounded_bf16"):
        chosen(tmp_path, "bf16")


def logits(folder: Path, kv_type: str) -> tuple[str, np.ndarray]:
    """What a prefill gives, and the set that it ran in."""
    found, kind = np.zeros((1, 1, 12), np.float32), np.uint16 if kv_type == "bf16" else np.float32
    kv = [np.zeros((1, 2, 32, 8), kind) for _ in range(4)]
    graphs = OpenVinoGraphs(folder, kv_type, 1, cache=False)
    OpenVinoPasses(graphs).prefill(np.arange(32)[None] % 36, np.array([32]), found, kv)
    return graphs.instructions.name if graphs.instructions else "", found


@pytest.mark.parametrize(("kv_type", "close"), [("f32", 1e-5), ("bf16", 0.2)])
def test_every_set_of_an_artifact_answers_alike(
    tiny: Path, tiny_bf16: Path, monkeypatch: pytest.MonkeyPatch, kv_type: str, close: float
) -> None:
    folder = engine_of({"f32": tiny, "bf16": tiny_bf16}[kv_type], "openvino")
    facts, has = json.loads((folder / "engine.json").read_text()), features()
    if not can_be_compiled(kv_type):
        pytest.skip(f"this CPU has no instruction set for {kv_type}")
    assert facts["instruction_sets"] == [each.name for each in sets_of(kv_type)]
    _, best = logits(folder, kv_type)
    for each in sets_of(kv_type):
        if each.needs <= has:
            pretend(monkeypatch, each.needs)
            name, found = logits(folder, kv_type)
            assert name == each.name
            np.testing.assert_allclose(found, best, atol=close)


def test_a_server_says_in_which_it_runs(server: RunningServer, tiny: Path) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        config = client.get_model_config("recommend", headers=server.grpc_headers).config
    found = chosen(engine_of(tiny, "openvino"), "f32")
    assert found is not None and config.parameters["instruction_set"].string_value == found.name


def test_engines_of_nodes_say_so(tiny_of_nodes: Path) -> None:
    assert instruction_set(Settings(tiny_of_nodes, tiny_of_nodes)) == NODES
