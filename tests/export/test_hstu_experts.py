"""An HSTU ranker with experts: exported, built, on both targets, and changed by a delta, it is the torch module."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from build.openvino.engines import build_engines
from ensembles.local import LocalRecommender
from export.hstu_delta import export_delta
from genrec.engine.cuda.host import PageLocked
from genrec.engine.cuda.hstu import CudaHstu, Shared
from genrec.errors import ArtifactError
from genrec.nn.experts import Experts
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.rank.hstu import CONFIG, EXPORTED, HstuConfig
from genrec.rank.hstu_weights import load_weights
from genrec.tensor_file import mapped_tensors, read_plain_metadata, write_tensors
from tests.export.test_hstu_parity import OnnxPasses, assert_torch_s
from tests.oracles.hstu_asked import ByTorch, check_ranking, events_of
from tests.oracles.hstu_further import changed_further
from tests.tiny import add_hstu, random_hstu

EXPERTS = 3


@pytest.fixture(scope="module")
def artifact(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("experts") / "artifact"))
    add_hstu(made, partial(random_hstu, experts=EXPERTS))
    build_engines(made, "f32")
    return made


@pytest.mark.parametrize(("events", "features"), [(0, 2), (1, 0), (16, 3), (29, 3)])
def test_logits_of_the_exported_graph_are_torch_s(artifact: Path, events: int, features: int) -> None:
    model = load_hstu(artifact / "model")
    assert isinstance(model.head, Experts) and model.head.shape == (2, EXPERTS)
    assert_torch_s(OnnxPasses(artifact / "onnx"), model, events, features)


@pytest.mark.parametrize("events", [1, 16])
def test_logits_of_target_cuda_are_torch_s(artifact: Path, events: int) -> None:
    model, cpu = load_hstu(artifact / "model"), torch.device("cpu")
    shared = Shared(cpu, threading.Lock(), PageLocked(cpu))
    assert_torch_s(CudaHstu(shared, model.config, load_weights(artifact)), model, events, 3)


def test_what_is_served_is_the_module_s(artifact: Path) -> None:
    by_torch, events = ByTorch(artifact), events_of(np.random.default_rng(0), 12)
    items = by_torch.catalogue.item_ids.tolist()
    history, candidates = items[:12], items[100:140]
    with LocalRecommender(artifact, 16, decoder="rank", pool_user_mb=1) as local:
        (answer,) = local.rank([(history, candidates)], 10, **events)
    check_ranking(answer, by_torch(history, candidates, **events), 10)


def test_a_delta_changes_them(artifact: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(artifact, tmp_path / "artifact"))
    changed_further(copy, 1)
    assert export_delta(copy) is not None
    served = load_weights(copy, 1).arrays
    for name, each in load_hstu(copy / "model").state_dict().items():
        assert np.array_equal(served[name], each.numpy()), name
    assert any(name.startswith("head.gates") for name in served)


def test_files_of_before_there_were_experts_are_read(tiny_hstu: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))
    config, exported = copy / "model" / CONFIG, copy / "onnx" / EXPORTED
    said = json.loads(config.read_text())
    assert said.pop("experts") == json.loads(read_plain_metadata(exported)["config"])["experts"] == 0
    config.write_text(json.dumps(said))
    assert HstuConfig.load(config) == HstuConfig.load(tiny_hstu / "model" / CONFIG)
    arrays = {name: np.array(each) for name, each in mapped_tensors(exported).items()}
    write_tensors(exported, arrays, {"format": "pt", "config": json.dumps(said)})
    changed_further(copy, 1)
    assert export_delta(copy) is not None


@pytest.mark.parametrize("experts", [-1, 65, 2.0, "4", True, None])
def test_a_number_of_experts_that_no_model_has_is_told(
    tiny_hstu: Path, tmp_path: Path, experts: object
) -> None:
    said = json.loads((tiny_hstu / "model" / CONFIG).read_text()) | {"experts": experts}
    (tmp_path / CONFIG).write_text(json.dumps(said))
    with pytest.raises(
        ArtifactError, match=r"hstu.json: .*experts: is .* \(accepted: a whole number(, 0 to 64)?\)"
    ):
        HstuConfig.load(tmp_path / CONFIG)
