"""Buckets of target `cuda`: which shapes are captured, and that answers do not depend on them. No GPU is needed."""

import shutil

import numpy as np
import pytest
import torch

from build.cuda.engines import build_engines as build_cuda
from genrec import steps
from genrec.catalogue.semantic_id import pack
from genrec.engine.cuda import load_forward
from genrec.engine.cuda.beams import DeviceTree, expand, first_beams
from genrec.engine.cuda.generate import MOST_GRAPHS, DeviceGenerator
from genrec.engine.cuda.graphs import padded
from genrec.models.config import ModelConfig
from genrec.settings import SPAN, Settings, padded_rows
from genrec.steps.prompts import spans
from tests.build.test_cuda import CPU, index_of
from tests.tiny import tiny_catalogue


@pytest.fixture(scope="module")
def mine(tiny, tmp_path_factory):
    """A copy of the tiny artifact, with engines for torch."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("cuda") / "artifact")
    build_cuda(artifact, "f32", "cpu")
    return artifact


def test_a_user_may_exclude_all_but_a_few_of_many_items(mine):
    """More semantic IDs than any shape of a graph would hold; the answers are the rest of the catalogue."""
    catalogue = tiny_catalogue(1700)
    index = index_of(catalogue)
    generator = DeviceGenerator(load_forward(mine / "engines" / "cuda"), DeviceTree.of(index, CPU), 8)
    excluded = np.arange(5, 1700)
    found = generator.generate(np.ones((1, 32), np.int64), np.array([3]), [index.blocked(excluded)])
    assert set(found.paths[0][found.alive[0]].tolist()) == set(
        pack(catalogue.codes[:5], (12, 12, 12)).tolist()
    )


def test_buckets_are_few_and_pad_little():
    """Those of a 1.7 B model that reads 6,000 tokens: with a pool each they took more than any GPU has."""
    config = ModelConfig((256, 256, 256), 2000, num_hidden_layers=28, num_attention_heads=16,
                         num_key_value_heads=8, head_dim=128)  # fmt: skip
    lengths, token = spans(config), 28 * 2 * 8 * 128 * 2  # bytes of its KV in bf16
    assert all(span <= padded(span, SPAN) < 1.25 * span + 32 for span in lengths)
    assert {padded(span, SPAN) % 32 for span in lengths} == {0}
    exact = [rows * span * token for rows in (1, 2, 4, 8) for span in lengths]
    buckets = {(padded_rows(rows), padded(span, SPAN)) for rows in range(1, 9) for span in lengths}
    assert len(exact) == 752 and sum(exact) > 139e9
    assert len(buckets) == 104 <= MOST_GRAPHS and max(rows * span for rows, span in buckets) * token < 6e9


@pytest.fixture
def captured(monkeypatch):
    """The generator and the shape of every graph, in the order in which they would be captured."""
    seen = []
    monkeypatch.setattr(
        DeviceGenerator, "capture", lambda self, bucket: seen.append((self, bucket.tokens.shape))
    )
    return seen


def test_what_the_scheduler_can_make_is_captured_before_the_server_is_ready(mine, captured):
    """The largest first; whatever comes then needs no graph more."""
    beams, capacity = 16, 300
    step = steps.load("generate", Settings(mine, mine / "no-arena", beams, "cuda", batch_tokens=capacity))
    step.close()
    ahead = [shape for _, shape in captured]
    assert ahead == sorted(ahead, key=np.prod, reverse=True) and len(set(ahead)) == len(ahead)
    ((generator, config),) = {(each, each.forward.config) for each, _ in captured}
    for span in spans(config):
        for rows in range(1, 9):
            if rows == 1 or rows * (span + beams * (config.levels - 1)) <= capacity:
                generator.prepare(rows, span)
    assert len(captured) == len(ahead) and {rows for rows, _ in ahead} == {1, 2, 4}


def test_the_graph_that_was_not_used_for_longest_goes(mine, captured):
    forward, tree = load_forward(mine / "engines" / "cuda"), DeviceTree.of(index_of(tiny_catalogue()), CPU)
    generator = DeviceGenerator(forward, tree, 8, most=2)
    for span in (32, 64, 40, 30, 100, 64):  # 40 is padded to 64, 30 to 32; 100 to 128, for which 64 goes
        generator.prepare(1, span)
    assert [shape for _, shape in captured] == [(1, 32), (1, 64), (1, 128), (1, 64)]


def test_a_batch_s_answers_do_not_depend_on_what_it_is_padded_to(mine):
    """Three requests of 40 tokens run as four of 64; tokens of an earlier batch are behind them."""
    index, draw = index_of(tiny_catalogue()), np.random.default_rng(0)
    generator = DeviceGenerator(load_forward(mine / "engines" / "cuda"), DeviceTree.of(index, CPU), 8)
    free = index.blocked(np.array([-1], np.int32))
    tokens, lengths = draw.integers(0, 36, (3, 40)), np.array([40, 17, 33])
    generator.generate(draw.integers(0, 36, (4, 64)), np.full(4, 64), [free] * 4)
    together = generator.generate(tokens, lengths, [free] * 3)
    for b, length in enumerate(lengths):
        logits, shared = generator.forward.prefill(
            torch.from_numpy(tokens[b : b + 1, :length]), torch.tensor([length])
        )
        assert shared[0].shape[2] == length
        first = expand(generator.tree, 1, logits, first_beams(1, CPU), generator.counts[0], None)
        alone = generator.generate(tokens[b : b + 1, :length], lengths[b : b + 1], [free])
        assert set(together.paths[b] // 144) <= set(first.paths[0].tolist())
        assert np.array_equal(together.paths[b], alone.paths[0])
        assert np.allclose(together.scores[b], alone.scores[0], atol=1e-5)
