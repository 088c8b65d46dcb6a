"""The attention kernel for Hopper: its own source, run thread by thread on this CPU, against the float64 oracle.

wgmma, TMA and mbarriers are emulated with swizzle and descriptors as the PTX manual has them: `emulate_hopper.hpp`.
"""

import shutil

import pytest
import torch

from build.plugin import compile as plugin
from genrec.engine import abi
from tests.build.attention import TOLERANCE, call, error, random_case, truth

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++: the emulated kernel is not compiled"
)
DEVICE = "-DXATTENTION_CAPABILITY=90"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    path = tmp_path_factory.mktemp("hopper") / "emulated.so"
    plugin.compile_for_host(path, extra=[DEVICE])
    return abi.load(path)


def which(library, batch, beams, heads, kv_heads, size, span, kind):
    shape = abi.Shape(batch, beams, heads, kv_heads, size, span, 1, 1, abi.TYPES[kind])
    return library.xattention_kernel(shape).decode()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("batch", "beams", "heads", "kv_heads", "size", "span", "unshared", "splits"),
    [
        (1, 70, 1, 1, 64, 65, 1, 1),  # one stage, not full; part of a tile of rows
        (2, 40, 4, 2, 128, 300, 2, 1),  # two heads to a KV head
        (1, 65, 2, 1, 128, 257, 3, 4),  # two tiles, the second with two rows; a split without keys
        (2, 24, 6, 2, 64, 520, 1, 2),  # three heads to a KV head
        (1, 66, 1, 1, 128, 1000, 1, 1),  # the ring of stages comes round
    ],
)
def test_kernel_equals_the_oracle(
    emulated, kind, batch, beams, heads, kv_heads, size, span, unshared, splits
):
    assert which(emulated, batch, beams, heads, kv_heads, size, span, kind) == "wgmma"
    case = random_case(beams, batch, beams, heads, kv_heads, size, span, unshared, kind)
    case[5][0] = span
    got = call(emulated, case, splits)
    assert not got.isnan().any(), "an element was not written"
    assert error(got, truth(case)) < TOLERANCE[kind]


@pytest.mark.parametrize("length", [0, 1, 37, 128, 256, 300])
@pytest.mark.parametrize("splits", [1, 2])
def test_padding_is_never_read_into_the_result(emulated, length, splits):
    """KV behind a prompt's end is whatever memory holds; even NaN there must not show. Ends on a stage's edge too."""
    case = random_case(0, 1, 80, 1, 1, 64, 300, 1, "bf16")
    case[5][:] = length
    want = truth(case)
    case[1][:, :, length:] = torch.nan
    case[2][:, :, length:] = torch.nan
    assert error(call(emulated, case, splits), want) < TOLERANCE["bf16"]


def test_other_shapes_and_devices_keep_the_other_kernels(emulated, tmp_path):
    assert which(emulated, 1, 70, 1, 1, 128, 9, "f32") == "rows"
    assert which(emulated, 1, 70, 1, 1, 32, 9, "f16") == "mma"
    assert which(emulated, 1, 64, 1, 1, 128, 9, "f16") == "mma"  # half a tile of rows, and no more
    assert which(emulated, 1, 70, 1, 1, 128, 0, "f16") == "mma"  # no tensor map has a dimension of 0
    plugin.compile_for_host(
        tmp_path / "ampere.so", extra=["-DXATTENTION_CAPABILITY=80", "-DXATTENTION_ONLY=16"]
    )
    assert which(abi.load(tmp_path / "ampere.so"), 1, 70, 1, 1, 128, 9, "f16") == "mma"


@pytest.mark.parametrize(
    ("batch", "beams", "span", "splits"),
    [
        (1, 128, 1024, 4),  # eight would be a stage each, and a merge of eight
        (1, 256, 1024, 4),  # 32 tiles, 132 multiprocessors: one round of 128 blocks
        (1, 512, 1024, 1),  # a merge takes longer than the stages that it saves
        (8, 128, 1024, 1),
        (1, 128, 5000, 8),
        (1, 256, 5000, 4),
        (1, 512, 5000, 2),
        (8, 256, 5000, 1),  # 256 tiles are two rounds as they are
    ],
)
def test_splits_are_those_that_were_fastest_on_an_h100(emulated, batch, beams, span, splits):
    shape = abi.Shape(batch, beams, 16, 8, 128, span, 2, 1, 2)
    assert emulated.xattention_splits(shape, 132) == splits


LEAVE, WAIT = "    leave(ring.empty_values(n - 1));\n", "    wgmma_wait<0>();\n    settle(run.out);\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("wgmma_wait<1>();", ""),  # scores are read before they are there
        (WAIT + LEAVE, LEAVE + WAIT),  # values are overwritten before they are added up
        ("    wait_for(ring.full_keys(n), ring.parity(n));", ""),  # keys are read before they are there
        ("PANEL, 1024), true", "1024, PANEL), true"),  # a descriptor's offsets
        ("if (real < HOPPER_KEYS) zero", "if (false) zero"),  # NaN behind the end
    ],
)
def test_the_emulation_notices_a_mistake(right, wrong, tmp_path, monkeypatch):
    """What it is for: with one mistake in it, the kernel's answer is wrong."""
    monkeypatch.setattr(plugin, "FOLDER", shutil.copytree(plugin.FOLDER, tmp_path / "plugin"))
    source = plugin.FOLDER / "hopper.cuh"
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, wrong))
    plugin.compile_for_host(tmp_path / "wrong.so", extra=[DEVICE, "-DXATTENTION_ONLY=128", "-Wno-error"])
    case = random_case(0, 1, 70, 1, 1, 128, 900, 1, "bf16")
    case[5][:] = 800
    want = truth(case)
    case[2][:, :, 800:] = torch.nan
    assert not error(call(abi.load(tmp_path / "wrong.so"), case), want) < TOLERANCE["bf16"]
