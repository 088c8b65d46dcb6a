"""The tensorrt target's ensemble: rendered, linted, and run through with ONNX Runtime in the plans' place."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as TritonConfig

from build.tensorrt.graphs import plan_graph, plan_names
from build.tensorrt.profiles import axes
from build.tensorrt.ranker import plan_ranker
from deploy.tensorrt.reference import ReferenceRuntime
from ensembles.lint import lint
from ensembles.local import LocalRecommender, request
from ensembles.render_tensorrt import COMMITTED, configs, render, repository
from ensembles.tensorrt import Plan
from ensembles.tensorrt_rank import served_tensorrt
from genrec import steps
from genrec.errors import InputError
from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig
from genrec.settings import Settings
from tests.tiny import tiny_catalogue

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def test_committed_configs_are_what_the_renderer_prints(tmp_path):
    ensembles = served_tensorrt(
        COMMITTED, "f16", COMMITTED.levels, RankerConfig(item_tokens=COMMITTED.levels)
    )
    for path in render(ensembles, tmp_path):
        assert (REPOSITORY / path.relative_to(tmp_path)).read_text() == path.read_text()
    committed = {p.relative_to(REPOSITORY) for p in REPOSITORY.glob("*/configs/tensorrt*.pbtxt")}
    assert committed == {p.relative_to(tmp_path) for p in tmp_path.glob("*/configs/*.pbtxt")}


@pytest.mark.parametrize("levels", [1, 2, 3, 5])
@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
def test_every_model_of_the_chain_has_a_configuration(levels, kv_type):
    config = replace(COMMITTED, codebook_sizes=(16,) * levels, code_offsets=(), vocab_size=0)
    ranker = RankerConfig(item_tokens=levels)
    made = {c.name: c for c in configs(served_tensorrt(config, kv_type, levels, ranker))}
    plans = {"prefill", "prefill_draft", "score_candidates", *(f"decode_{n}" for n in range(2, levels + 1))}
    assert {n for n, c in made.items() if c.backend == "tensorrt"} == plans
    for name in plans:
        assert made[name].platform == "tensorrt_plan" and made[name].instance_group[0].kind == 1
        assert not any(t.name == "kv" for t in (*made[name].input, *made[name].output))


def test_the_plans_inputs_and_outputs_are_the_graphs(tiny_ranker):
    """What Triton is told equals what the engine will have, by name, type and shape."""
    config = ModelConfig.load(tiny_ranker / "model" / "config.json")
    types = {onnx.TensorProto.FLOAT: "FP32", onnx.TensorProto.INT32: "INT32", onnx.TensorProto.INT64: "INT64"}
    ensembles = served_tensorrt(config, "f32", config.levels, plan_ranker(tiny_ranker))
    plans = [model for ensemble in ensembles for model in ensemble.models if isinstance(model, Plan)]
    assert {plan.name for plan in plans} == set(plan_names(tiny_ranker, config))
    for plan in plans:
        graph = plan_graph(tiny_ranker, plan.name, "f32", config).graph
        for told, real in ((plan.inputs, graph.input), (plan.outputs, graph.output)):
            assert [t.name for t in told] == [p.name for p in real]
            for tensor, port in zip(told, real, strict=True):
                dims = [d.dim_value or -1 for d in port.type.tensor_type.shape.dim][1:]
                assert (tensor.dtype, list(tensor.dims)) == (types[port.type.tensor_type.elem_type], dims), (
                    tensor.name
                )


def test_warmups_are_within_the_profiles_of_short_prompts():
    config = replace(COMMITTED, max_history=2)
    most = axes(config)["S"][-1]
    ensembles = served_tensorrt(config, "f16", config.levels, RankerConfig(item_tokens=config.levels))
    plans = [model for ensemble in ensembles for model in ensemble.models if isinstance(model, Plan)]
    dims = {name: dims for plan in plans for warmup in plan.warmups for name, dims in warmup.dims.items()}
    tokens = [dims["prompt"][0], *(each[1] for name, each in dims.items() if name.startswith("shared_"))]
    assert set(tokens) == {most} and most < 32


@pytest.mark.parametrize("decoder", ["beam", "draft"])
@pytest.mark.parametrize("exclude", [False, True])
def test_the_chain_answers_as_the_default_target_does(tiny, exclude, decoder):
    items = [int(i) for i in tiny_catalogue().item_ids]
    histories = [items[:6], items[9:40], [-7], items[3:4]]
    with LocalRecommender(tiny, beam_width=16, decoder=decoder) as local:
        want = local.recommend(histories, 10, exclude)
    name = {"beam": "recommend", "draft": "recommend_draft"}[decoder]
    got = ReferenceRuntime(tiny, 16, name).run([request(h, 10, exclude) for h in histories])
    for mine, theirs in zip(got, want, strict=True):
        assert not isinstance(mine, Exception), mine
        assert np.array_equal(mine["item_ids"], theirs["item_ids"])
        assert np.allclose(mine["scores"], theirs["scores"], atol=2e-4)


def test_beam_search_refuses_logits_of_another_shape(tiny):
    step = steps.load("beam_search", Settings(tiny, tiny / "no arena", 16, "tensorrt"))
    ticket, excluded = np.array([[5, 3, 0, 0, 0, 0]]), np.array([[-1]], np.int32)
    for logits in (np.zeros((1, 2, 12), np.float32), np.zeros((1, 1, 12)), np.zeros((1, 12), np.float32)):
        answer = step.run([{"logits": logits, "ticket": ticket, "excluded": excluded}])[0]
        assert isinstance(answer, InputError) and "logits" in str(answer)


def test_a_laid_out_repository_is_whole_and_clean(tmp_path, tiny_ranker):
    config = ModelConfig.load(tiny_ranker / "model" / "config.json")
    ensembles = served_tensorrt(config, "f16", config.levels, plan_ranker(tiny_ranker))
    plans = tmp_path / "plans"
    plans.mkdir()
    for name in plan_names(tiny_ranker, config):
        (plans / f"{name}.plan").write_bytes(b"plan")
    repository(ensembles, plans, REPOSITORY, tmp_path / "repository")
    assert lint(tmp_path / "repository") == []
    for path in (tmp_path / "repository").glob("*/config.pbtxt"):
        parsed = text_format.Parse(path.read_text(), TritonConfig())
        file = {"tensorrt": "model.plan", "python": "model.py"}.get(parsed.backend)
        assert file is None or (path.parent / "1" / file).is_file()
        for warmup in parsed.model_warmup:
            for value in warmup.inputs.values():
                assert not value.input_data_file or (path.parent / "warmup" / value.input_data_file).is_file()


def test_plans_are_asked_for_before_anything_is_laid_out(tmp_path, tiny):
    shutil.rmtree(tmp_path / "r", ignore_errors=True)
    with pytest.raises(FileNotFoundError):
        repository(served_tensorrt(COMMITTED), tmp_path, REPOSITORY, tmp_path / "r")
