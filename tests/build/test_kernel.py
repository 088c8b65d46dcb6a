"""The attention kernel: its own source, run thread by thread on this CPU, against the float64 oracle."""

import shutil

import numpy as np
import pytest
import torch

from build.plugin import compile as plugin
from genrec.engine import abi
from genrec.nn.xattention import xattention as staged
from tests.build.attention import DTYPES, TOLERANCE, call, error, random_case, truth


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulated kernel is not compiled")
    path = tmp_path_factory.mktemp("kernel") / "emulated.so"
    plugin.compile_for_host(path)
    return abi.load(path)


@pytest.mark.parametrize("seed", range(4))
def test_oracle_equals_the_staged_attention_of_torch(seed):
    draw = np.random.default_rng(seed)
    kv_heads, group = draw.integers(1, 4, 2)
    case = random_case(
        seed,
        2,
        int(draw.integers(1, 9)),
        int(kv_heads * group),
        int(kv_heads),
        8,
        13,
        int(draw.integers(1, 4)),
        "f32",
    )
    case = [t.double() if t.is_floating_point() else t for t in case]
    assert error(staged(*case), truth(case)) < 1e-12


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(
    ("batch", "beams", "heads", "kv_heads", "size", "span", "unshared", "splits"),
    [
        (2, 5, 4, 2, 16, 9, 1, 1),  # one short stage
        (1, 40, 4, 2, 32, 70, 2, 1),  # two tiles of rows, the second partly empty
        (2, 33, 6, 2, 16, 100, 3, 3),  # a group of three heads; splits, some of them without keys
        (1, 70, 1, 1, 64, 65, 1, 2),
        (1, 3, 2, 1, 128, 33, 2, 1),
    ],
)
def test_kernel_equals_the_oracle(
    emulated, kind, batch, beams, heads, kv_heads, size, span, unshared, splits
):
    case = random_case(beams, batch, beams, heads, kv_heads, size, span, unshared, kind)
    got = call(emulated, case, 1 if kind == "f32" else splits)
    assert not got.isnan().any(), "an element was not written"
    assert error(got, truth(case)) < TOLERANCE[kind]


@pytest.mark.parametrize("seed", range(6))
def test_kernel_on_random_shapes(emulated, seed):
    draw = np.random.default_rng(100 + seed)
    kind, size = draw.choice(list(DTYPES)), int(draw.choice([8, 16, 32, 40]))
    kv_heads, group, batch = (int(x) for x in draw.integers(1, 3, 3))
    case = random_case(
        seed,
        batch,
        int(draw.integers(1, 50)),
        kv_heads * group,
        kv_heads,
        size,
        int(draw.integers(1, 90)),
        int(draw.integers(1, 4)),
        kind,
    )
    splits = int(draw.integers(1, 4)) if kind != "f32" and size in (16, 32) else 1
    got = call(emulated, case, splits)
    assert not got.isnan().any()
    assert error(got, truth(case)) < TOLERANCE[kind]


def test_padding_is_never_read_into_the_result(emulated):
    """KV behind a prompt's end is whatever memory holds; even NaN there must not show."""
    case = random_case(0, 1, 9, 2, 1, 16, 64, 1, "bf16")
    case[5][:] = 37
    want = truth(case)
    case[1][:, :, 37:] = torch.nan
    case[2][:, :, 37:] = torch.nan
    assert error(call(emulated, case), want) < TOLERANCE["bf16"]


def test_a_shape_no_kernel_takes_is_refused(emulated):
    q = torch.zeros(1, 2, 2, 512)
    shape = abi.Shape(1, 2, 2, 2, 512, 4, 1, 1, 0)
    assert emulated.xattention(shape, *[q.data_ptr()] * abi.TENSORS, None) == -1


def test_splits_fill_the_gpu_and_no_more(emulated):
    def splits(beams, span):
        return emulated.xattention_splits(abi.Shape(1, beams, 16, 8, 128, span, 1, 1, 2), 132)

    assert splits(512, 1024) == 3  # 128 blocks for 264 places
    assert splits(128, 1024) == 8  # a split keeps 128 keys
    assert splits(1024, 100) == 1


@pytest.mark.parametrize("kind", DTYPES)
def test_zero_is_zero_in_every_type(emulated, kind):
    """The emulation's own 16-bit numbers."""
    case = random_case(0, 1, 3, 2, 1, 16, 5, 1, kind)
    case[2][:], case[4][:] = 0, 0
    assert not call(emulated, case).any()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc: the kernels are not compiled for GPUs")
def test_nvcc_compiles_the_kernels_for_every_architecture(tmp_path):
    """One head size only, for the time it takes; `perf.gpu.run` compiles all. The fused ones keep to registers."""
    report = plugin.compile_for_gpu(tmp_path / "kernel.so", extra=["-DXATTENTION_ONLY=128", "-no-compress"])
    assert b".target sm_89" in (tmp_path / "kernel.so").read_bytes(), "PTX, for later cards"
    abi.load(tmp_path / "kernel.so")
    for architecture in plugin.ARCHITECTURES:
        assert f"sm_{architecture}" in report
    fused = [lines for lines in report.split("Compiling entry function") if "5fused" in lines.split("\n")[0]]
    assert len(fused) == (4 * 6 + 1) * len(plugin.ARCHITECTURES)  # by type and alignment, but for beam search
    assert all("0 bytes spill stores, 0 bytes spill loads" in lines for lines in fused)
    assert "serialized" not in report, "of wgmma: products would wait for one another"
    of_hopper = report.split("hopper_tiles")[1:]
    assert of_hopper and all("0 bytes spill stores" in part for part in of_hopper[1::2])
