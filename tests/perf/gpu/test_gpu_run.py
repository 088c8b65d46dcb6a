"""The GPU script without a GPU: all of it that can run on CPU tensors, and the arithmetic of its floors."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from genrec.catalogue.semantic_id import unpack
from genrec.catalogue.validity import ValidityIndex
from perf.gpu import attention, requests

CPU = torch.device("cpu")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the emulated kernel is not compiled")
def test_a_dry_run_goes_through_every_part(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "perf.gpu.run", "--dry", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    last = json.loads(done.stdout.splitlines()[-1])
    kept = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert {key: last[key] for key in kept} == kept and last["machine"]["device"] == "CPU dry run"
    assert last["failed"] == {} and last["worst_error_over_tolerance"] < 1
    assert set(last["ms"]) == {"s12_b1", "s12_b2"}
    for row in last["kernel"].values():
        assert {"ms", "baseline_ms", "floor_ms"} <= set(row)
        assert isinstance(row["baseline_ms"], float) and isinstance(row["flex_ms"], float), row
    assert set(last["served"]) == set(last["ms"]), "the same requests through a real tritonserver"
    assert "perf_analyzer" in last["served"]["s12_b1"]["by"]
    for row in last["requests"].values():
        assert set(row["parts_ms"]) == {"prefill", "decode", "selection", "gaps"}


def test_dry_figures_never_land_among_the_results():
    done = subprocess.run(
        [sys.executable, "-m", "perf.gpu.run", "--dry", "--save"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "not saved" in done.stderr


def test_floors_by_hand():
    """BW 512, S 1,024, 16 heads of 128 over 8: 4.3 GFLOP; 4.2 MB of prompt KV, 4.2 MB q and output, 4.2 MB own KV."""
    floors = attention.Case(1, 512, 16, 8, 128, 1024, 2).floors_ms(1e12, 1e15)
    assert floors["operations"] == pytest.approx(4 * 512 * 16 * 128 * 1026 / 1e12)
    megabytes = (2 * 1024 * 8 * 128 + 2 * 512 * 16 * 128 + 2 * 512 * 2 * 8 * 128) * 2 / 1e6
    assert floors["bytes"] == pytest.approx(megabytes * 1e6 / 1e9)


def test_peers_compute_the_same_attention():
    """What the kernel is timed beside must be its equal in result; FlashInfer's is checked by no one here."""
    case = attention.Case(2, 5, 4, 2, 16, 11, 2)
    inputs = case.inputs(CPU, torch.float32)
    want = attention.oracle(*(t.numpy() for t in inputs))
    per_beam = attention._per_beam(case, inputs)().reshape(2, 5, 4, 16)
    flex = attention._flex(case, inputs, CPU)().transpose(1, 2)
    assert np.allclose(per_beam.numpy(), want, atol=1e-5)
    assert np.allclose(flex.numpy(), want, atol=1e-5)


def test_the_random_tree_is_the_one_that_is_served():
    """`random_tree` builds without numba what ValidityIndex builds from the same semantic IDs."""
    sizes = (7, 5, 9)
    tree = requests.random_tree(sizes, 60, CPU, seed=3)
    ids = np.sort(np.random.default_rng(3).choice(7 * 5 * 9, 60, replace=False))
    index = ValidityIndex.build(unpack(ids, sizes), sizes, np.ones(60, np.int64), np.arange(60))
    for level in range(3):
        assert np.array_equal(tree.codes[level], index.codes[level])
        assert np.array_equal(tree.pointers[level], index.children_into(level + 1))


def test_operations_of_a_prefill_by_hand():
    config = requests.FULL.config
    matrices = 2048 * (2 * 2048 + 2 * 1024 + 3 * 6144) * 28
    assert requests.prefill_operations(config, 1000, 2) == 2 * (
        2 * matrices * 1000 + 28 * 2 * 2048 * 1000 * 1000
    )
