"""One generator, four ways to run it: torch's full pass, torch staged, ONNX Runtime, OpenVINO."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino as ov
import pytest
import torch

import build.openvino.graphs
from build.openvino.graphs import build_openvino
from build.openvino.operations import can_be_compiled
from export.decoder import export_graph, functions
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import chosen, engine_of
from genrec.engine.interface import WEIGHTS, Engine
from genrec.engine.load import load_passes
from genrec.kv.arena import Arena
from genrec.kv.layout import Layout
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator
from genrec.nn.model import Generator
from genrec.nn.xattention import DecodeAllGraph, DecodeGraph, PrefillGraph, shared_names, unshared_names
from genrec.search.constraint import Constraint

PROMPTS = torch.tensor([[1, 13, 25, 2, 14, 26, 3, 15, 27], [4, 16, 28, 5, 17, 29, 0, 0, 0]])
LENGTHS = torch.tensor([9, 6])
CODES = [torch.tensor([[0, 3, 3, 7, 11], [1, 1, 2, 5, 9]]), torch.tensor([[2, 0, 6, 6, 1], [8, 4, 4, 0, 10]])]


def full_pass(generator, row, beam):
    """Logits per level of one beam, by running its whole path through the causal pass: the obvious way."""
    config = generator.config
    tokens = PROMPTS[row, : LENGTHS[row]].tolist()
    logits = []
    for level in range(1, config.levels + 1):
        hidden, _ = generator.prefill(torch.tensor([tokens]))
        logits.append(generator.head(hidden[0, -1], level))
        if level < config.levels:
            tokens.append(config.code_offsets[level - 1] + int(CODES[level - 1][row, beam]))
    return logits


@torch.no_grad()
def staged(generator):
    """(first logits, shared KV, logits per later level, fresh KV per level) by the graphs' modules."""
    first, *shared = PrefillGraph(generator)(PROMPTS, LENGTHS)
    past, later, fresh = [], [], []
    for level in range(2, generator.config.levels + 1):
        logits, *new = DecodeGraph(generator, level)(CODES[level - 2], LENGTHS, shared, past)
        later.append(logits)
        fresh.append(new)
        past = new  # L=3: one earlier level at most
    return first, shared, later, fresh


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_staged_attention_equals_the_full_pass(model_type):
    torch.manual_seed(1)
    config = ModelConfig(
        (12, 12, 12), 16, hidden_size=32, head_dim=8, intermediate_size=48, model_type=model_type
    )
    generator = Generator(config).eval()
    first, _, later, _ = staged(generator)
    for row in range(2):
        for beam in range(5):
            truth = full_pass(generator, row, beam)
            assert torch.allclose(first[row, 0], truth[0], atol=1e-5)
            for level, logits in enumerate(later):
                assert torch.allclose(logits[row, beam], truth[level + 1], atol=1e-5)


def test_whoever_builds_or_serves_may_read_an_artifact(tiny):
    """Some libraries write files for their owner alone, and a server may run as someone else."""
    files = [path for path in tiny.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert len(files) > 20
    assert [path for path in files if not path.stat().st_mode & 0o004] == []


def test_what_a_graph_is_made_of_are_nodes_with_bodies(tiny):
    for name in ("prefill", "prefill_draft", "decode_2", "decode_3", "decode_all"):
        model = onnx.load(tiny / "onnx" / f"{name}.onnx")
        onnx.checker.check_model(model, full_check=False)
        called = Counter(node.op_type for node in model.graph.node if node.domain == "genrec")
        assert called == functions(load_config(tiny), name)
        assert set(called) <= {function.name for function in model.functions}
        attention = {"decode_2": 2, "decode_3": 2, "decode_all": 4}.get(name, 1)
        assert called["XAttention" if "decode" in name else "CausalAttention"] == attention


@torch.no_grad()
def test_onnx_runtime_equals_torch(tiny):
    generator = load_generator(tiny / "model")
    first, shared, later, fresh = staged(generator)
    config, lengths = generator.config, LENGTHS.numpy()
    session = onnxruntime.InferenceSession(tiny / "onnx" / "prefill.onnx")
    answer = session.run(None, {"tokens": PROMPTS.numpy(), "prompt_length": lengths})
    for got, want in zip(answer, [first, *shared], strict=True):
        assert np.allclose(got, want.numpy(), atol=2e-5)
    past: list = []
    for level in (2, 3):
        session = onnxruntime.InferenceSession(tiny / "onnx" / f"decode_{level}.onnx")
        feeds = {"codes": CODES[level - 2].numpy(), "prompt_length": lengths}
        feeds |= dict(
            zip(
                [*shared_names(config), *unshared_names(config, level)],
                [t.numpy() for t in [*shared, *past]],
                strict=True,
            )
        )
        answer = session.run(None, feeds)
        for got, want in zip(answer, [later[level - 2], *fresh[level - 2]], strict=False):
            assert np.allclose(got, want.numpy(), atol=2e-5)
        past = fresh[0]


@torch.no_grad()
def test_all_levels_in_one_pass_equal_the_full_pass(tiny):
    """The beams of the first prompt: a code that two of them begin with is there once."""
    generator = load_generator(tiny / "model")
    config, codes = generator.config, [each[:1] for each in CODES]
    first, parents = np.unique(codes[0][0].numpy(), return_inverse=True)
    assert len(first) < len(parents)
    _, *shared = PrefillGraph(generator)(PROMPTS[:1], LENGTHS[:1])
    given = [LENGTHS[:1], torch.from_numpy(first)[None], codes[1], torch.from_numpy(parents), *shared]
    logits = DecodeAllGraph(generator)(given[0], given[1:3], given[3:4], shared)
    names = ["prompt_length", "codes_1", "codes_2", "parents_2", *shared_names(config)]
    session = onnxruntime.InferenceSession(tiny / "onnx" / "decode_all.onnx")
    by_onnx = session.run(None, {name: each.numpy() for name, each in zip(names, given, strict=True)})
    for beam, parent in enumerate(parents):
        _, *want = full_pass(generator, 0, beam)
        for level, row in enumerate((parent, beam)):
            assert torch.allclose(logits[level][0, row], want[level], atol=1e-5)
            assert np.allclose(by_onnx[level][0, row], want[level].numpy(), atol=2e-5)


@pytest.mark.parametrize(("kv_type", "worst", "usual"), [("f32", 5e-5, 5e-5), ("bf16", 0.35, 0.06)])
@torch.no_grad()
def test_openvino_in_the_arena_equals_torch(tiny, tiny_bf16, tmp_path, kv_type, worst, usual):
    """bf16 keeps 8 bits: logits of 3.3 (root mean square; the largest is 9.8) are right to 0.05, and torch's own are no
    better.
    """  # fmt: skip
    generator = load_generator(tiny / "model")
    folder = engine_of({"f32": tiny, "bf16": tiny_bf16}[kv_type], "openvino")
    errors = errors_of(generator, folder, kv_type, tmp_path)
    assert np.abs(errors).max() < worst and np.sqrt(np.mean(errors**2)) < usual


def errors_of(generator, folder, kv_type, tmp_path):
    """Of all logits of an engine, against the same modules in torch."""
    first, _, later, _ = staged(generator)
    layout = Layout(generator.config, 8, kv_type)
    engine = Engine(layout, *load_passes("openvino", folder, kv_type))
    arena = Arena.create(tmp_path / "arena", 2, layout.slot_bytes)
    region = arena.allocate(2, PROMPTS.shape[1])
    engine.prefill(PROMPTS.numpy(), LENGTHS.numpy(), region)
    wrong = [(layout.first_logits(region) - first.numpy()).ravel()]
    for handle in region.handles:
        arena.rest(handle)
    for number, handle in enumerate(region.handles):
        row = arena.hold(handle)
        for level in range(2, generator.config.levels + 1):
            engine.decode(level, CODES[level - 2][number].numpy(), int(LENGTHS[number]), row)
            wrong.append((layout.logits(row, level, 5) - later[level - 2][number].numpy()).ravel())
    return np.concatenate(wrong)


@pytest.mark.skipif(not can_be_compiled("bf16"), reason="no g++, or a CPU without AVX-512")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        ("qwen3", (32, 64, 32)),
        pytest.param("qwen2", (32, 64), marks=pytest.mark.long),
        pytest.param("llama", (32, 64), marks=pytest.mark.long),
    ],
)
@torch.no_grad()
def test_operations_of_bf16_equal_torch_in_every_family(tmp_path, model_type, sizes):
    """Sizes that the products take: of a decode's layers nothing but biases is left to OpenVINO."""
    torch.manual_seed(1)
    config = ModelConfig(
        sizes, 16, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=96, model_type=model_type,
    )  # fmt: skip
    generator = Generator(config).eval()
    for name, weights in generator.named_parameters():  # norms and biases that do something
        weights.normal_(1.0, 0.3) if "norm" in name else weights.normal_(0.0, 0.3)
    for name in config.graph_names:
        export_graph(generator, name, tmp_path)
    build_openvino(tmp_path, tmp_path / "engines", "bf16", 48, operation=True)
    core = ov.Core()
    core.add_extension(str(tmp_path / "engines" / chosen(tmp_path / "engines", "bf16").library))
    kinds = {
        node.get_type_name()
        for node in core.read_model(tmp_path / "engines" / f"{config.graph_names[-1]}.xml").get_ops()
    }
    assert {"XLinear", "XAttention", "XRotate", "XRows"} <= kinds
    assert not kinds & {"MatMul", "Sigmoid", "Power", "Multiply"}
    logits = np.concatenate([each.numpy().ravel() for each in staged(generator)[2]])
    errors = errors_of(generator, tmp_path / "engines", "bf16", tmp_path)
    assert np.sqrt(np.mean(errors**2)) < 0.04 * logits.std()  # 8 bits through two layers: 0.015 to 0.026 seen


def engines_of(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_graph: bool) -> Path:
    """The tiny engines, or the same passes as one graph, of OpenVINO's own nodes."""
    if not one_graph:
        return engine_of(tiny, "openvino")
    monkeypatch.setattr(build.openvino.graphs, "LARGE", 0)
    monkeypatch.setattr(build.openvino.graphs, "SHARED", 1)
    build_openvino(tiny / "onnx", tmp_path / "one", "f32", 48, operation=False)
    return tmp_path / "one"


@pytest.mark.parametrize("one_graph", [False, True])
def test_no_kv_is_copied_on_its_way_through_the_engine(tiny, tmp_path, monkeypatch, one_graph):
    """Every KV tensor and every logit that OpenVINO reads or writes is the arena's own memory: 0 bytes copied."""
    config = ModelConfig.load(tiny / "model" / "config.json")
    layout = Layout(config, 8, "f32")
    (passes,) = load_passes("openvino", engines_of(tiny, tmp_path, monkeypatch, one_graph), "f32")
    engine = Engine(layout, passes)
    arena = Arena.create(tmp_path / "arena", 2, layout.slot_bytes)
    region = arena.allocate(2, 9)

    def copied() -> int:
        count = 0
        for name, one in passes._requests.items():
            request = one._request
            tensors = [(p, request.get_output_tensor(n)) for n, p in enumerate(request.model_outputs)]
            tensors += [(p, request.get_input_tensor(n)) for n, p in enumerate(request.model_inputs)]
            for port, tensor in tensors:
                if port.any_name.startswith(WEIGHTS):
                    continue
                outside = tensor.data.dtype == np.float32 and not np.shares_memory(tensor.data, arena._bytes)
                if outside and tensor.byte_size:
                    count += tensor.byte_size
                    print(name, port.any_name, tensor.shape)
        return count

    engine.prefill(PROMPTS.numpy(), LENGTHS.numpy(), region)
    assert copied() == 0
    arena.rest(region.handles[1])
    row = arena.hold(region.handles[1])
    for level in (2, 3):
        engine.decode(level, CODES[0][1].numpy(), 6, row)
        assert copied() == 0
    assert len(passes._requests) == (1 if one_graph else 3)


def test_one_graph_holds_its_weights_once_and_answers_as_many_do(tiny, tiny_of_nodes, tmp_path, monkeypatch):
    config, index = load_config(tiny), load_validity(tiny, load_config(tiny))
    one = engines_of(tiny, tmp_path, monkeypatch, one_graph=True)
    assert sorted(path.name for path in one.glob("*.xml")) == [
        "passes.xml",
        "prefill_draft.xml",
        "resume.xml",
        "resume_draft.xml",
    ]
    many = engine_of(tiny_of_nodes, "openvino")
    sizes = [path.stat().st_size for path in (one / "passes.bin", many / "prefill.bin")]
    assert sizes[0] < 1.3 * sizes[1]
    generators = [
        HostExecutor(passes, config, 12, "f32")
        for folder in (one, many)
        for passes in load_passes("openvino", folder, "f32", threads=1, streams=2)
    ]
    free = Constraint(index, index.blocked(np.array([-1], np.int32)))
    for tokens, lengths in (
        (PROMPTS, LENGTHS),
        (PROMPTS[:1, :4], LENGTHS[:1].clamp(max=4)),
        (PROMPTS, LENGTHS),
    ):
        found = [
            each.answers(tokens.numpy().astype(np.int64), lengths.numpy(), [free] * len(tokens))
            for each in generators
        ]
        for other in found[1:]:
            for mine, theirs in zip(found[0], other, strict=True):
                np.testing.assert_array_equal(mine.paths, theirs.paths)
                np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-6)
