"""The fused kernels: their own source, run thread by thread on this CPU, against torch; the launches that they save."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from build.cuda.engines import build_engines
from build.plugin import compile as plugin
from ensembles.local import LocalRecommender
from genrec.engine import abi
from genrec.engine.cuda import LIBRARY, load_forward
from genrec.engine.cuda.beams import DeviceTree, expand, first_beams
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.generate import DeviceGenerator
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.cuda.operations import TorchOperations
from genrec.models.config import ModelConfig
from genrec.nn.model import Generator
from genrec.nn.xattention import xattention
from perf.gpu import fused as checks
from perf.gpu import requests
from tests.build.test_cuda import index_of
from tests.tiny import tiny_catalogue

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++: the emulated kernels are not compiled"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel") / "emulated.so"
    plugin.compile_for_host(path, extra=["-DXATTENTION_ONLY=16"])
    return path


@pytest.fixture
def operations(library):
    torch.manual_seed(0)
    return FusedOperations(library, CPU)


@pytest.mark.parametrize("dtype", checks.TOLERANCE, ids=str)
@pytest.mark.parametrize("case", checks.HEADS, ids=str)
def test_heads_are_normed_rotated_and_left_where_attention_reads_them(operations, dtype, case):
    checks.check_heads(operations, CPU, dtype, case)


@pytest.mark.parametrize("dtype", checks.TOLERANCE, ids=str)
@pytest.mark.parametrize("case", [case for case in checks.HEADS if case.unshared], ids=str)
def test_tokens_are_inherited_as_by_the_twin(operations, dtype, case):
    checks.check_inherit(operations, CPU, dtype, case)


@pytest.mark.parametrize("dtype", checks.TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", checks.ROWS, ids=str)
def test_rows_equal_the_twin(operations, dtype, shape):
    checks.check_norm(operations, CPU, dtype, *shape)
    checks.check_swiglu(operations, CPU, dtype, *shape)


@pytest.mark.parametrize("case", checks.SELECTIONS, ids=str)
def test_a_step_of_beam_search_equals_the_twin(operations, case):
    for _ in range(2):  # the second launch finds the counters as the first left them
        checks.check_selection(operations, CPU, case)


@pytest.mark.parametrize("seed", range(4))
def test_ties_go_to_the_smaller_path(operations, seed):
    """All scores are equal, or two: the beams that are kept are the first of those that tie."""
    tree, logits = requests.random_tree((9, 60), 200, CPU, seed), torch.zeros(1, 1, 9)
    logits[0, 0, tree.codes[0][seed % 3]] = -torch.inf if seed % 2 else 0.0
    args = tree, 1, logits, first_beams(1, CPU), 9 if seed < 2 else 4, None
    mine = operations.expand(*args)
    checks.hold_equal(mine, expand(*args), str(seed))
    again = tree, 2, torch.zeros(1, mine.nodes.shape[1], 60), mine, 50, None
    checks.hold_equal(operations.expand(*again), expand(*again), str(seed))


def test_sharing_a_batch_with_a_bad_request_changes_nothing(operations):
    tree = requests.random_tree((9, 60), 200, CPU)
    logits = torch.randn(2, 1, 9)
    alone = operations.expand(tree, 1, logits[:1], first_beams(1, CPU), 5, None)
    logits[1] = torch.nan
    both = operations.expand(tree, 1, logits, first_beams(2, CPU), 5, None)
    assert both.bad.tolist() == [False, True]
    assert all(torch.equal(x[:1], y) for x, y in zip(both, alone, strict=True))
    again = operations.expand(tree, 2, torch.randn(2, 5, 60), both, 5, None)
    assert again.bad.tolist() == [False, True]  # it stays so


def test_what_is_not_contiguous_is_refused(operations):
    x = torch.zeros(4, 6)
    with pytest.raises(ValueError, match="contiguous"):
        operations.swiglu(x.T)
    with pytest.raises(ValueError, match="same strides"):
        k = torch.zeros(1, 3, 2, 4)
        operations.heads(torch.zeros(1, 3, 24), None, 0.0, (x, x), k, torch.zeros(1, 2, 3, 4).transpose(1, 2))


def test_a_shape_that_no_kernel_takes_is_refused_with_its_sizes(operations):
    k, table = torch.zeros(1, 3, 1, 258), torch.zeros(1, 3, 1, 129)
    with pytest.raises(RuntimeError, match=r"fused_heads refused .*'size': 258.*-1"):
        operations.heads(torch.zeros(1, 3, 3 * 258), None, 0.0, (table, table), k, k.clone())


def forwards(config, library, dtype=torch.float32):
    """The same model by torch and by the kernels."""
    torch.manual_seed(3)
    generator = Generator(config).to(dtype).eval()
    by_torch = Forward(generator, xattention, TorchOperations())
    return by_torch, Forward(generator, XAttentionKernel(library, CPU), FusedOperations(library, CPU))


def config_of(model_type="qwen3", layers=2):
    return ModelConfig(
        (12, 9, 7), 8, hidden_size=32, head_dim=16, num_hidden_layers=layers, intermediate_size=48,
        model_type=model_type,
    )  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_a_forward_by_the_kernels_equals_the_one_by_torch(library, model_type):
    tokens, lengths = torch.randint(0, 12, (2, 9)), torch.tensor([9, 4])
    codes, own = torch.randint(0, 9, (2, 5)), torch.randn(4, 2, 5, 2, 2, 16)
    found = []
    for forward in forwards(config_of(model_type), library):
        logits, shared = forward.prefill(tokens, lengths)
        mine = own.clone()
        found.append([logits, *shared, forward.decode(3, codes, lengths, shared, mine), mine])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))
    assert torch.equal(found[1][-1][:, :, :, 0], own[:, :, :, 0])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_requests_by_the_kernels_are_answered_as_by_torch(library, dtype, tolerance):
    """Whole ones, of which one blocks items. In bf16 roundings differ, so that scores alone are compared."""
    config = config_of()
    catalogue = tiny_catalogue(150, config.codebook_sizes)
    index = index_of(catalogue)
    tokens, lengths = np.random.default_rng(0).integers(0, 28, (2, 8)), np.array([8, 5])
    blocked = [index.blocked(np.array(rows, np.int32)) for rows in ([-1], range(0, 150, 2))]
    want, got = (
        DeviceGenerator(forward, DeviceTree.of(index, CPU), 10).generate(tokens, lengths, blocked)
        for forward in forwards(config, library, dtype)
    )
    if dtype == torch.float32:
        assert np.array_equal(got.paths, want.paths) and np.array_equal(got.parents, want.parents)
    assert np.allclose(np.sort(got.scores), np.sort(want.scores), atol=tolerance)


def test_an_engine_with_the_library_runs_by_it(tiny, library, tmp_path):
    """And answers as without it: prompts of three lengths, seen items excluded."""
    mine = shutil.copytree(tiny, tmp_path / "artifact")
    build_engines(mine, "f32", "cpu")
    items = [int(i) for i in tiny_catalogue().item_ids]
    answers = []
    for operations in (TorchOperations, FusedOperations):
        if operations is FusedOperations:
            shutil.copy(library, mine / "engines" / "cuda" / LIBRARY)
        assert isinstance(load_forward(mine / "engines" / "cuda").operations, operations)
        with LocalRecommender(mine, 16, "cuda") as local:
            answers.append(local.recommend([items[:6], items[9:11], items[20:25]], 10, True))
    for want, got in zip(*answers, strict=True):
        assert np.array_equal(got["item_ids"], want["item_ids"])
        assert np.allclose(got["scores"], want["scores"], atol=1e-5)


class Launches(TorchDispatchMode):
    """What a GPU would be launched for: operations of torch that are more than a view or memory, and calls of ours.

    On a GPU torch's RMS norm is one launch, which on a CPU it makes of eight.
    """

    NONE = ("empty", "new_empty", "empty_like", "_unsafe_view", "detach")

    def __init__(self, monkeypatch):
        super().__init__()
        self.names, self._inside = [], False
        monkeypatch.setattr(F, "rms_norm", self.one("rms_norm", F.rms_norm))

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if not (self._inside or operation.is_view or name in self.NONE):
            self.names.append(name)
        return operation(*args, **(kwargs or {}))

    def one(self, name, work):
        """`work` counted as one launch of that name, whatever it calls."""

        def counted(*given):
            self.names.append(name)
            self._inside = True
            try:
                return work(*given)
            finally:
                self._inside = False

        return counted


def launches(model_type, layers, make, monkeypatch):
    """Of prefill and of decode, with so many layers."""
    with monkeypatch.context() as patch:
        seen = Launches(patch)
        forward = make(config_of(model_type, layers), patch, seen)
        forward.attend = seen.one("attend", forward.attend)
        tokens, lengths = torch.zeros(1, 9, dtype=torch.int64), torch.tensor([9])
        counts = []
        with seen:
            _, shared = forward.prefill(tokens, lengths)
            counts.append(len(seen.names))
            own = torch.zeros(2 * layers, 1, 5, 1, 2, 16)
            seen.names.clear()
            forward.decode(2, tokens[:, :5], lengths, shared, own)
        return [*counts, len(seen.names)]


@pytest.mark.parametrize(
    ("model_type", "fused", "want"),
    [
        ("qwen3", False, 29),
        ("qwen2", False, 27),
        ("llama", False, 27),
        ("qwen3", True, 9),
        ("qwen2", True, 9),
    ],
)
def test_launches_of_a_layer(library, monkeypatch, model_type, fused, want):
    """Of one layer more. Nine are four products, attention, heads, SwiGLU, and two residuals with their norms."""

    def make(config, patch, seen):
        forward = forwards(config, library)[fused]
        if fused:
            count_calls(forward.operations._library, patch, seen)
        return forward

    few, more = (np.array(launches(model_type, layers, make, monkeypatch)) for layers in (2, 3))
    assert (more - few).tolist() == [want, want]


def test_a_step_of_beam_search_is_one_launch(operations, monkeypatch):
    tree = requests.random_tree((9, 60), 200, CPU)
    counts = []
    for do in (TorchOperations(), operations):
        seen = Launches(monkeypatch)
        count_calls(operations._library, monkeypatch, seen)
        first, logits = first_beams(2, CPU), torch.randn(2, 1, 9)
        do.expand(tree, 1, logits, first, 5, None)  # makes the counters
        seen.names.clear()
        with seen:
            do.expand(tree, 1, logits, first, 5, None)
        counts.append(len(seen.names))
    assert counts[1] == 1 and counts[0] > 40


def count_calls(library, patch, seen):
    """Every launch of the library is one."""
    for name in abi.FUSED:
        patch.setattr(library, name, seen.one(name, getattr(library, name)))
