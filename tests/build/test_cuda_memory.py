"""What target `cuda` holds on the device, and lets go of. On CPU tensors, and on a stand-in of CUDA's graphs."""

import gc
import shutil
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from build.plugin import compile as plugin
from genrec.engine.cuda.graphs import Replayed
from genrec.engine.cuda.kept import KeptUsers
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.interface import Split, UserName
from genrec.nn.xattention import xattention
from genrec.pool.owner import TTL_S
from tests.build.attention import random_case
from tests.build.test_cuda_ranker import CPU, entry_of, made


@pytest.fixture
def graphs(monkeypatch):
    """As on a device, but what is captured is only run."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "stream": lambda _: nullcontext(),
        "graph": lambda *_, **__: nullcontext(), "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)


def test_a_graph_that_is_dropped_is_gone_at_once(graphs):
    """Left to the garbage collector it could be freed in the middle of another capture."""

    class Bucket:
        def __init__(self):
            self.replayed = Replayed(lambda: self.value(), torch.device("cuda"), None)

        def value(self):
            return 7

    gc.disable()
    try:
        bucket = Bucket()
        assert bucket.replayed() == 7
        gone = weakref.ref(bucket)
        del bucket
        assert gone() is None
    finally:
        gc.enable()


def test_launches_of_many_shapes_share_few_workspaces(tmp_path):
    """In turns, so that each finds what the others have left."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulated kernel is not compiled")
    plugin.compile_for_host(tmp_path / "emulated.so")
    kernel = XAttentionKernel(tmp_path / "emulated.so", CPU, splits=3)
    shapes = [(batch, beams, span) for batch in (1, 2) for beams in (5, 9) for span in (130, 200, 290)]
    for turn in range(2):
        for seed, (batch, beams, span) in enumerate(shapes):
            case = random_case(100 * turn + seed, batch, beams, 4, 2, 16, span, 2, "bf16")
            want = xattention(*(x.float() if x.is_floating_point() else x for x in case))
            assert (kernel(*case).float() - want).norm() / want.norm() < 1e-2
    assert len(kernel._workspaces) <= 4 < len(shapes)


@pytest.mark.parametrize("why", ["forgotten", "old"])
@torch.no_grad()
def test_of_who_leaves_nothing_stays_where_passes_read_users(why, monkeypatch):
    ranker, device = made("split")
    now = [0.0]
    monkeypatch.setattr(device, "_users", KeptUsers(CPU, 1 << 20, device.passes.wipe, lambda: now[0]))
    items = ranker.items(torch.zeros(4, 3, dtype=torch.int64)).numpy()

    def rank(users, forgot_ns):
        asked = []
        for user, length in users:
            tokens = np.full(length, user)
            name = UserName(bytes([user]), forgot_ns)
            asked.append(Split(np.arange(4), length, entry_of(ranker, tokens), name))
        device.split(items, asked)

    rank([(1, 30), (2, 40)], 0)
    rank([(1, 30)], 0)
    held = device.passes._users
    assert held.count_nonzero() > entry_of(ranker, np.full(30, 1)).size, "the second user's is there still"
    if why == "old":
        now[0] = TTL_S
    rank([(3, 1)], 1 if why == "forgotten" else 0)
    assert 0 < held.count_nonzero() <= entry_of(ranker, np.full(1, 3)).size
