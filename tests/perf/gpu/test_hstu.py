"""What the GPU script says of HSTU rankers, tried on CPU tensors: right ones pass, wrong ones do not."""

import numpy as np
import pytest
import torch

from genrec.engine.cuda.hstu import CudaHstu
from perf.gpu import hstu, parts
from perf.gpu.table import table

CPU = torch.device("cpu")


def test_a_ranker_that_is_right_passes_and_is_timed():
    errors = hstu.check(hstu.DRY, CPU)
    assert set(errors) == {"default", "next"} and max(errors.values()) < 1e-5
    kept = parts.GpuResults()
    kept.results["hstu"] = hstu.measure(hstu.DRY, CPU, (1e9, 1e9))
    row = kept.results["hstu"]["default"]
    assert row["captured"] == 4, "users of 32 and 64 tokens, and rankings over them: nothing came later"
    assert "HSTU, default: rank " in table(kept.results)


@pytest.mark.parametrize("wrong", ["logits", "user", "NaN"])
def test_a_ranker_that_is_wrong_on_the_device_fails(monkeypatch, wrong):
    """Candidates in another order, KV that is not all there, or scores that are no numbers."""
    name = wrong if wrong == "user" else "logits"
    right = getattr(CudaHstu, name)

    def wrongly(self, *given):
        if wrong == "logits":
            return right(self, *given)[::-1]
        if wrong == "NaN":
            return np.nan * right(self, *given)
        right(self, *given)
        given[-1][-1][:, :, -1] = 0

    monkeypatch.setattr(CudaHstu, name, wrongly)
    with pytest.raises(AssertionError, match="of its norms off"):
        hstu.check(hstu.DRY, CPU)


def test_floors_by_hand():
    """200 events, 64 wide, 3 layers: a layer's matrices are 64 to 256 and 64 to 64; KV is 6 times 200 by 64."""
    floors = hstu.floors_ms(hstu.DEFAULT, 200, 100, (1e9, 1e9))
    kv, layer = 6 * 200 * 64, 64 * 256 + 64 * 64
    assert floors["rank"]["bytes"] == pytest.approx(4 * (3 * layer + 64 * 64 + kv) / 1e6)
    assert floors["user"]["bytes"] == pytest.approx(4 * (2 * layer + 64 * 128 + kv) / 1e6)
    seen = 3 * 2 * 2 * 64 * 200  # scores and sums of a candidate
    assert floors["rank"]["operations"] == pytest.approx(100 * (2 * (3 * layer + 64 * 64) + seen) / 1e6)
    pairs = np.tril(np.ones((200, 200))).sum() - 100
    of_pairs = 2 * 2 * 2 * 64 * pairs
    assert floors["user"]["operations"] == pytest.approx((2 * 200 * (2 * layer + 64 * 128) + of_pairs) / 1e6)
