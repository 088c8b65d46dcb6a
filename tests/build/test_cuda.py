"""Target `cuda` on CPU tensors: forward, beam search and binding, each against its slow twin (else: perf.gpu.run)."""

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from build.catalogue import remove_items
from build.cuda.engines import build_engines as build_cuda
from build.plugin import compile as plugin
from ensembles.local import LocalRecommender, LocalRuntime, request
from ensembles.recommend import recommend
from genrec import steps
from genrec.catalogue import agreement
from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.validity import ValidityIndex
from genrec.catalogue.versions import point, read_current
from genrec.engine.cuda import load_forward
from genrec.engine.cuda.beams import DeviceTree, _best, block, expand, first_beams, nothing_blocked
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.generate import DeviceGenerator
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.instructions import engine_of
from genrec.engine.load import load_passes
from genrec.errors import InputError
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator
from genrec.nn.model import Generator
from genrec.nn.xattention import DecodeGraph, PrefillGraph, xattention
from genrec.search.constraint import Constraint
from genrec.search.expand import expand as expand_on_cpu
from genrec.settings import Settings
from tests.tiny import tiny_catalogue

CPU = torch.device("cpu")


class Operations(TorchDispatchMode):
    """What torch was made to do: the name, device and type of every tensor that an operation gave."""

    def __init__(self):
        super().__init__()
        self.gave = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        tensors = (each for each in tree_leaves(made) if isinstance(each, torch.Tensor))
        self.gave |= {(operation.overloadpacket.__name__, each.device.type, each.dtype) for each in tensors}
        return made


@pytest.fixture(scope="module")
def mine(tiny, tmp_path_factory):
    """A copy of the tiny artifact, to build into."""
    return shutil.copytree(tiny, tmp_path_factory.mktemp("cuda") / "artifact")


def index_of(catalogue):
    return ValidityIndex.build(
        catalogue.codes, catalogue.codebook_sizes, catalogue.popularity, catalogue.item_ids
    )


def hold_equal(device, request, cpu):
    """One request's device beams against `genrec.search.expand`'s: the living ones are equal, the rest are dead."""
    living = len(cpu)
    assert (device.nodes[request, living:] == -1).all()
    for name in ("paths", "nodes", "parents"):
        assert np.array_equal(getattr(device, name)[request, :living].numpy(), getattr(cpu, name)), name
    assert np.allclose(device.scores[request, :living].numpy(), cpu.scores, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_beam_search_equals_the_one_on_the_cpu(seed):
    """Random trees, widths, blocked items; coarse logits, so that ties are many; -inf among them."""
    draw = np.random.default_rng(seed)
    sizes = tuple(int(t) for t in draw.integers(2, 20, 3))
    catalogue = tiny_catalogue(int(draw.integers(1, 200)), sizes, seed)
    index, width, batch = index_of(catalogue), int(draw.integers(1, 40)), 3
    excluded = [
        draw.choice(len(catalogue), int(draw.integers(0, len(catalogue))), replace=False)
        for _ in range(batch)
    ]
    excluded[0] = np.array([THESE_ALONE, *excluded[0], 0])
    blocked = [index.blocked(rows) for rows in excluded]
    tree = DeviceTree.of(index, CPU)
    masks = nothing_blocked(tree, batch)
    for each in (blocked[::-1], blocked):  # what was blocked before is not any more
        block(masks, each)
    device, cpu = first_beams(batch, CPU), [None] * batch
    for level, count in enumerate(tree.beam_counts(width), 1):
        logits = draw.integers(-4, 4, (batch, device.nodes.shape[1], sizes[level - 1])).astype(np.float32)
        logits[draw.random(logits.shape) < 0.1] = -np.inf
        device = expand(tree, level, torch.from_numpy(logits), device, count, masks[level - 1])
        for b in range(batch):
            mine = logits[b, : 1 if cpu[b] is None else len(cpu[b])]
            cpu[b] = expand_on_cpu(Constraint(index, blocked[b]), level, mine, cpu[b], width)
            hold_equal(device, b, cpu[b])
    assert not device.bad.any()


def test_a_bad_logit_is_told():
    index = index_of(tiny_catalogue())
    logits = torch.zeros(2, 1, 12)
    logits[1, 0, int(index.codes[0][3])] = torch.nan
    beams = expand(DeviceTree.of(index, CPU), 1, logits, first_beams(2, CPU), 5, None)
    assert beams.bad.tolist() == [False, True]


@pytest.mark.parametrize("seed", range(4))
def test_the_best_are_those_of_a_sort(seed):
    """Of rows with many ties, -inf among the scores, fewer candidates than beams in one; no key of 64 bits."""
    draw = np.random.default_rng(seed)
    score, valid = draw.integers(-3, 3, (3, 50)).astype(np.float32), draw.random((3, 50)) < 0.7
    score[draw.random(score.shape) < 0.2] = -np.inf
    valid[1] = np.arange(50) % 9 == 0
    with Operations() as seen:
        chosen, alive = _best(torch.from_numpy(score), torch.from_numpy(valid), 12)
    values, places = {dtype for name, _, dtype in seen.gave if name == "topk"}
    assert {values, places} == {torch.int32, torch.int64}  # values and indices
    for b in range(3):
        order = sorted(np.flatnonzero(valid[b]), key=lambda place: (-score[b, place], place))
        want = sorted(order[:12])
        assert alive[b].tolist() == [n < len(want) for n in range(12)]
        assert chosen[b, : len(want)].tolist() == want


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_forward_equals_the_model(model_type):
    torch.manual_seed(3)
    config = ModelConfig(
        (12, 9, 7), 8, hidden_size=32, head_dim=8, intermediate_size=48, model_type=model_type
    )
    generator = Generator(config).eval()
    forward = Forward(generator, xattention)
    tokens, lengths = torch.randint(0, 12, (2, 9)), torch.tensor([9, 4])
    first, *kv = PrefillGraph(generator)(tokens, lengths)
    logits, shared = forward.prefill(tokens, lengths)
    assert torch.allclose(logits, first, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(shared, kv, strict=True))
    own, past = torch.empty(4, 2, 5, 1, 2, 8), []
    for level, size in ((2, 12), (3, 9)):
        codes = torch.randint(0, size, (2, 5))
        want, *fresh = DecodeGraph(generator, level)(codes, lengths, kv, past)
        assert torch.allclose(forward.decode(level, codes, lengths, shared, own), want, atol=1e-5)
        past, own = fresh, torch.cat((own, torch.empty_like(own[:, :, :, :1])), 3)


def test_the_last_layer_of_prefill_computes_what_is_read():
    """Its KV of all positions, but queries, output and MLP of one; the products are counted."""
    config = ModelConfig((12, 9), 8, hidden_size=32, head_dim=8, intermediate_size=48)
    forward = Forward(Generator(config).eval(), xattention)
    with FlopCounterMode(display=False) as counter:
        forward.prefill(torch.randint(0, 12, (2, 9)), torch.tensor([9, 4]))
    counts = counter.get_flop_counts()["Global"]
    products = sum(n for operation, n in counts.items() if "attention" not in str(operation))
    heads, kv, mlp = 2 * 32 * 32, 2 * 32 * 16, 3 * 32 * 48  # of q and output, k and v, gate, up and down
    assert products == 2 * 2 * (9 * (heads + kv + mlp) + 9 * kv + heads + mlp + 32 * 12)


def test_attention_is_computed_where_its_tensors_are():
    """On a device that is not the default one: no tensor of its own stays behind on the CPU."""
    q, shared, own = (
        torch.empty(shape, device="meta") for shape in ((2, 5, 4, 8), (2, 2, 9, 8), (2, 5, 1, 2, 8))
    )
    with Operations() as seen:
        xattention(q, shared, shared, own, own, torch.empty(2, dtype=torch.int64, device="meta"))
    assert {device for _, device, _ in seen.gave} == {"meta"}


def test_a_kept_beam_inherits_its_parents_kv(mine):
    build_cuda(mine, "f32", "cpu")
    forward = load_forward(mine / "engines" / "cuda")
    generator = DeviceGenerator(forward, DeviceTree.of(index_of(tiny_catalogue()), CPU), 8)
    own = torch.randn(4, 2, 3, 1, 2, 8)
    parents = torch.tensor([[0, 0, 2, 2], [1, 1, 1, 2]])
    room = generator.inherit(own, parents)
    assert room.shape == (4, 2, 4, 2, 2, 8)
    for b in range(2):
        assert torch.equal(room[:, b, :, 0], own[:, b, parents[b], 0])


@pytest.mark.parametrize("exclude", [False, True])
def test_the_one_model_answers_as_the_chain_does(mine, exclude):
    """OpenVINO step by step, against `generate`; prompts of two lengths, one of them three times, one empty."""
    build_cuda(mine, "f32", "cpu")
    items = [int(i) for i in tiny_catalogue().item_ids]
    histories = [items[:6], items[9:13], [-1], items[20:25], items[40:80]]
    requests = [request(h, 10, exclude) for h in histories]
    with LocalRecommender(mine, beam_width=16, decoder="staged") as local:
        wanted = local.recommend(histories, 10, exclude)
        answers = LocalRuntime(recommend(), replace(local.settings, target="cuda")).run(requests)
    for got, want in zip(answers, wanted, strict=True):
        assert not isinstance(got, Exception), got
        assert np.array_equal(got["item_ids"], want["item_ids"])
        assert np.allclose(got["scores"], want["scores"], atol=2e-4)


def test_versions_share_a_batch_and_are_not_mixed(mine, tmp_path):
    """`generate` splits what came together by the version in the ticket."""
    build_cuda(mine, "f32", "cpu")
    artifact = shutil.copytree(mine, tmp_path / "artifact")
    items = tiny_catalogue().item_ids
    remove_items(artifact, items[::2])
    agreement.create(tmp_path / "swap", artifact, 1)
    step = steps.load(
        "generate", Settings(artifact, artifact / "no-arena", 16, "cuda", swap=tmp_path / "swap")
    )
    point(artifact, read_current(artifact).to(2))
    while step._indices.current != 2:
        time.sleep(0.01)
    tokens, excluded = np.arange(32, dtype=np.int32)[None] % 12, np.array([[-1]], np.int32)
    asked = [
        {"tokens": tokens, "ticket": np.array([[5, 3, 0, 0, 0, version]]), "excluded": excluded}
        for version in (1, 2, 0, 1)
    ]
    together, alone = step.run(asked), [step.run([request])[0] for request in asked]
    step.close()
    for one, other in zip(together, alone, strict=True):
        assert np.array_equal(one["paths"], other["paths"])
    first, second, current, _ = (set(answer["paths"][0].tolist()) for answer in together)
    assert second == current != first
    codes = tiny_catalogue().codes
    assert first <= set(pack(codes, (12, 12, 12)).tolist())
    assert second <= set(pack(codes[1::2], (12, 12, 12)).tolist())


def test_a_second_stream_is_refused_by_name(mine):
    with pytest.raises(InputError, match=r"streams: is 2 .*1 with target cuda"):
        Settings(mine, mine / "no-arena", target="cuda", streams=2)
    with pytest.raises(InputError, match="target: is 'gpu'"):
        Settings(mine, mine / "no-arena", target="gpu")


def test_errors_stay_with_their_request(mine):
    build_cuda(mine, "f32", "cpu")
    step = steps.load("generate", Settings(mine, mine / "no-arena", 16, "cuda"))
    good = {
        "tokens": np.ones((1, 32), np.int32),
        "ticket": np.array([[5, 3, 0, 0, 0, 0]]),
        "excluded": np.array([[-1]], np.int32),
    }
    broken = [{"excluded": np.array([[10**6]], np.int32)}, {"tokens": np.full((1, 32), 99, np.int32)}]
    answers = step.run([good, {**good, **broken[0]}, {**good, **broken[1]}])
    assert len(answers[0]["paths"][0]) == 16
    assert [str(a).split(":")[0] for a in answers[1:]] == ["excluded_rows", "tokens"]


@pytest.mark.parametrize("kv_type", ["f32", "bf16"])
def test_the_ensemble_runs_on_the_engine_unchanged(mine, kv_type):
    build_cuda(mine, kv_type, "cpu")
    history = [[int(i) for i in tiny_catalogue().item_ids[:7]]]
    with LocalRecommender(mine, 16, "openvino") as ours, LocalRecommender(mine, 16, "cuda") as theirs:
        want, got = ours.recommend(history, 10)[0], theirs.recommend(history, 10)[0]
    assert np.allclose(got["scores"], want["scores"], atol=2e-4 if kv_type == "f32" else 0.1)
    if kv_type == "f32":
        assert np.array_equal(got["item_ids"], want["item_ids"])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the emulated kernel is not compiled")
def test_the_binding_calls_the_kernel_as_the_kernel_wants(tmp_path):
    """The forward of a model in bf16 over the emulated kernel, against the same over torch's attention."""
    plugin.compile_for_host(tmp_path / "emulated.so", extra=["-DXATTENTION_ONLY=16"])
    torch.manual_seed(0)
    config = ModelConfig((12, 9), 8, hidden_size=32, head_dim=16, intermediate_size=48)
    generator = Generator(config).to(torch.bfloat16).eval()
    tokens, lengths = torch.randint(0, 12, (2, 9)), torch.tensor([9, 4])
    codes, logits = torch.randint(0, 12, (2, 5)), []
    for attend in (xattention, XAttentionKernel(tmp_path / "emulated.so", CPU)):
        forward = Forward(generator, attend)
        _, shared = forward.prefill(tokens, lengths)
        own = torch.empty(4, 2, 5, 1, 2, 16, dtype=torch.bfloat16)
        logits.append(forward.decode(2, codes, lengths, shared, own))
    assert torch.allclose(*logits, atol=2e-2)
    with pytest.raises(ValueError, match="contiguous"):
        attend(*[shared[0].transpose(1, 2)] * 5, lengths)


def test_weights_are_those_of_the_checkpoint(mine):
    build_cuda(mine, "f32", "cpu")
    forward = load_forward(mine / "engines" / "cuda")
    assert torch.equal(forward.embedding, load_generator(mine / "model").embed_tokens.weight)


def test_draft_states_are_those_of_the_default_target(mine, monkeypatch):
    """NEZHA's one pass, for the ensemble that is served beside `recommend`; with the weights that are there."""
    build_cuda(mine, "f32", "cpu")
    tokens, lengths = np.random.default_rng(0).integers(0, 36, (2, 12)), np.array([9, 4])
    passes = [load_passes(t, engine_of(mine, t), "f32")[0] for t in ("openvino", "cuda")]
    monkeypatch.setattr("genrec.engine.cuda.load_generator", None)  # a second copy of them cannot be loaded
    states = [each.draft_states(tokens, lengths) for each in passes]
    assert states[1].dtype == np.float32 and np.allclose(*states, atol=1e-4)
