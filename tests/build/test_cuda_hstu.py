"""HSTU rankers of target `cuda` on CPU tensors: torch's own scores, and which graphs would be captured."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from build.cuda.engines import build_engines as build_cuda
from export.hstu import weights_of
from export.hstu_delta import export_delta
from genrec.engine.cuda import hstu
from genrec.engine.cuda.host import PageLocked
from genrec.engine.cuda.hstu import CudaHstu, Shared, load_hstu
from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest
from genrec.engine.hstu_users import HstuEntries, HstuUsers
from genrec.nn import hstu_checkpoint
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import CODES, FEATURE, ITEM, RATING, TIME, HstuConfig, NextConfig
from genrec.rank.hstu_weights import HstuWeights, load_weights
from tests.export.test_hstu_parity import OnnxPasses
from tests.oracles.hstu_asked import Asked, logits_of
from tests.oracles.hstu_further import changed_further
from tests.oracles.next_asked import next_scores

ITEMS, SIZES, LONGEST = 60, (5, 4, 3), 100
KINDS = ("hstu", "hstu-next")
Model = HstuRanker | HstuNext


def random_model(kind: str) -> Model:
    """Of users of up to 116 tokens: four spans."""
    torch.manual_seed(0)
    codes = torch.stack([torch.randint(0, size, (ITEMS,)) for size in SIZES], 1)
    shape = {"max_history": LONGEST, "hidden_size": 16, "layers": 2}
    model: Model
    if kind == "hstu":
        model = HstuRanker(HstuConfig(ITEMS, SIZES, 7, **shape), codes)
    else:
        model = HstuNext(NextConfig(ITEMS, SIZES, **shape), codes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name in ("of_item", "of_code", "of_rating", "of_feature"):
            if kind == "hstu":
                getattr(model, name).weight[0] = 0
    return model.eval()


def passes_of(model: Model, shared: Shared | None = None) -> CudaHstu:
    cpu = torch.device("cpu")
    shared = shared or Shared(cpu, threading.Lock(), PageLocked(cpu))
    return CudaHstu(shared, model.config, HstuWeights(weights_of(model), "", 0))


class Drawn:
    """A request of so many events and candidates, and the scores that torch gives as it trains."""

    def __init__(self, model: Model, events: int, candidates: int) -> None:
        draw, config = np.random.default_rng(1000 * events + candidates), model.config
        rows, asked = draw.integers(0, ITEMS, events), draw.integers(0, ITEMS, candidates)
        times, now = np.sort(draw.integers(0, 10**7, events)), 2 * 10**7
        times -= times[:1].sum()  # seconds since the first event
        codes: NDArray[Any] = model.codes.numpy()
        codes = codes[1:] if isinstance(model, HstuRanker) else codes
        features = [7, 1, 4] if isinstance(model, HstuRanker) else []
        tokens = np.zeros((len(features) + events, config.token_size), np.int32)
        tokens[: len(features), FEATURE] = features
        of_events = tokens[len(features) :]
        of_events[:, ITEM], of_events[:, TIME], of_events[:, CODES:] = rows + 1, times, codes[rows]
        candidates_rows = np.concatenate((asked[:, None] + 1, codes[asked]), 1).astype(np.int32)
        self.want: NDArray[Any]
        if isinstance(model, HstuRanker):
            of_events[:, RATING] = draw.integers(0, 6, events)
            given = Asked(rows.tolist(), of_events[:, RATING].tolist(), times.tolist(), now, features)
            self.want = logits_of(model, given, asked.tolist())[:, 0]
        else:
            self.want = next_scores(model, rows.tolist(), times.tolist(), now)[asked]
        self.request = HstuRequest(None, tokens, candidates_rows, now)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_torch_s_whatever_is_padded(kind: str) -> None:
    """One and the same passes, whose fixed inputs hold NaN where others left something behind."""
    model = random_model(kind)
    passes = passes_of(model)
    executor = HstuExecutor(passes, model.config)
    for events in (1, 2, 90, 31, 64, 5, 97):
        for candidates in (1, 16, 17, 40):
            passes._kv.fill_(np.nan)
            passes._marks.fill_(1)
            drawn = Drawn(model, events, candidates)
            scores, _ = executor.scores(drawn.request)
            np.testing.assert_allclose(scores, drawn.want, rtol=1e-5, atol=5e-5)


def test_features_alone_are_a_user() -> None:
    model = random_model("hstu")
    drawn = Drawn(model, 0, 9)
    scores, _ = HstuExecutor(passes_of(model), model.config).scores(drawn.request._replace(now=0))
    np.testing.assert_allclose(scores, drawn.want, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_kv_at_once_and_in_parts_is_that_of_the_exported_graphs(
    kind: str, tiny_hstu: Path, tiny_hstu_next: Path
) -> None:
    artifact = tiny_hstu if kind == "hstu" else tiny_hstu_next
    of = HstuConfig if kind == "hstu" else NextConfig
    config = of.load(artifact / "model" / of.kind.config)
    cpu = torch.device("cpu")
    passes = CudaHstu(
        Shared(cpu, threading.Lock(), PageLocked(cpu)), config, load_weights(artifact, kind=of.kind)
    )
    entries, draw = HstuEntries(config, ""), np.random.default_rng(3)
    tokens = np.zeros((12, config.token_size), np.int32)
    tokens[:, ITEM], tokens[:, CODES:] = draw.integers(1, 301, 12), draw.integers(1, 37, (12, 3))
    tokens[:, TIME] = np.sort(draw.integers(0, 10**7, 12))
    prefix = config.prefix(tokens)
    whole, parts, want = (entries.user(np.zeros(entries.user_bytes(32), np.uint8), 32) for _ in range(3))
    HstuUsers(OnnxPasses(artifact / "onnx", of.kind), entries).fill(prefix, want, 0, len(prefix))
    users = HstuUsers(passes, entries)
    users.fill(prefix, whole, 0, len(prefix))
    for past, end in ((0, 1), (1, 5), (5, len(prefix))):
        users.fill(prefix, parts, past, end)
    for each in (whole, parts):
        given = [kv[:, :, : len(prefix)] for kv in each]
        np.testing.assert_allclose(given, [kv[:, :, : len(prefix)] for kv in want], atol=1e-5)
    assert passes.captured == 1, "the first part is padded to the span of all"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_rehearsed_is_not_captured_when_it_comes(kind: str) -> None:
    model = random_model(kind)
    executor = HstuExecutor(passes_of(model), model.config)
    executor.rehearse()
    made = executor.captured
    assert made == 2 * 4 + 1, (
        "four spans of users, and of rankings of 100 candidates; and one of a single candidate"
    )
    for events in (1, 20, 33, 60, 84, LONGEST - 1):
        executor.scores(Drawn(model, events, 100).request)
        executor.scores(Drawn(model, events, 97).request)
    assert executor.captured == made
    executor.scores(Drawn(model, 20, 40).request)
    assert executor.captured == made + 1


def test_the_ranking_that_was_not_asked_for_longest_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hstu, "MOST_GRAPHS", 2)
    model = random_model("hstu")
    executor = HstuExecutor(passes_of(model), model.config)
    counts = []
    for candidates in (1, 17, 1, 40, 1, 17):
        executor.scores(Drawn(model, 20, candidates).request)
        counts.append(executor.captured)
    assert counts == [2, 3, 3, 4, 4, 5], "the user's, and three of rankings, one of which came twice"


@pytest.fixture
def artifact(tiny_hstu: Path, tmp_path: Path) -> Path:
    made = Path(shutil.copytree(tiny_hstu, tmp_path / "artifact"))
    build_cuda(made, "bf16", "cpu")
    return made


def test_passes_are_of_their_own_weights(artifact: Path) -> None:
    """In float32 also where the generator is in bf16; those of a delta stand beside those before it."""
    config = HstuConfig.load(artifact / "model" / HstuConfig.kind.config)
    load: Callable[[HstuWeights], Any] = load_hstu(artifact / "engines" / "cuda", config, "bf16", 0)
    models = [hstu_checkpoint.load_hstu(artifact / "model")]
    changed_further(artifact, 1)
    assert export_delta(artifact) is not None
    models.append(hstu_checkpoint.load_hstu(artifact / "model"))
    executors = [HstuExecutor(load(load_weights(artifact, number)), config) for number in range(2)]
    rows, ratings, times = [5, 8, 1, 5], [5, 1, 3, 4], [0, 10, 500, 900]
    codes: NDArray[Any] = models[0].codes.numpy()
    tokens = np.zeros((4, config.token_size), np.int32)
    tokens[:, ITEM], tokens[:, RATING], tokens[:, TIME] = np.array(rows) + 1, ratings, times
    tokens[:, CODES:] = codes[np.array(rows) + 1]
    asked = np.concatenate((np.arange(1, 10)[:, None], codes[1:10]), 1).astype(np.int32)
    found = [
        [executor.scores(HstuRequest(None, tokens, asked, 1000))[0] for executor in executors]
        for _ in range(2)
    ]
    want = [logits_of(model, Asked(rows, ratings, times, 1000, []), range(9))[:, 0] for model in models]
    np.testing.assert_allclose(found, [want, want], atol=2e-5)
    assert np.abs(want[0] - want[1]).max() > 0.01


def test_a_pass_waits_for_a_capture_of_other_weights() -> None:
    cpu = torch.device("cpu")
    shared = Shared(cpu, threading.Lock(), PageLocked(cpu))
    model = random_model("hstu")
    executor, drawn = HstuExecutor(passes_of(model, shared), model.config), Drawn(model, 5, 5)
    asks = threading.Thread(target=executor.scores, args=(drawn.request,))
    with shared.lock:
        asks.start()
        asks.join(0.2)
        assert asks.is_alive() and not executor.captured
    asks.join(60)
    assert executor.captured == 2


class OnDeviceAlone(TorchDispatchMode):
    """No operation may have a tensor of the host: a capture refuses a copy from it, and would not see later values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, torch.Tensor)]
        assert all(each.device.type == "meta" for each in tensors), func
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_captured_reads_nothing_of_the_host(kind: str) -> None:
    """Tried on tensors without memory, which no operation that waits for a value can have."""
    passes = passes_of(random_model(kind))
    passes._weights = {name: each.to("meta") for name, each in passes._weights.items()}
    for bucket, work in (
        (passes.bucket_of_user(40), passes._made),
        (passes.bucket_of_ranking(20, 40), passes._scored),
    ):
        given = [each.to("meta") for each in bucket.given]
        with OnDeviceAlone():
            work(*given)
