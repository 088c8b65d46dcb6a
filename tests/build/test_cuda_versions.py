"""Target `cuda`: catalogue versions share graphs, as the tree that these read lies in a room. No GPU is needed."""

import gc
import shutil
import weakref

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from build.cuda.engines import build_engines as build_cuda
from genrec.artifact import load_config
from genrec.engine.cuda import load_forward
from genrec.engine.cuda.beams import DeviceTree, block, expand, first_beams, nothing_blocked
from genrec.engine.cuda.generate import CudaExecutor, DeviceGenerator
from genrec.engine.cuda.tree_room import TreeRoom
from genrec.engine.load import load_executors
from genrec.search.constraint import Constraint
from genrec.search.expand import expand as expand_on_cpu
from genrec.settings import Settings
from tests.build.test_cuda import CPU, hold_equal, index_of
from tests.tiny import tiny_catalogue

WIDTH = 16


@pytest.fixture(scope="module")
def mine(tiny, tmp_path_factory):
    """A copy of the tiny artifact, with engines for torch."""
    artifact = shutil.copytree(tiny, tmp_path_factory.mktemp("cuda") / "artifact")
    build_cuda(artifact, "f32", "cpu")
    return artifact


@pytest.fixture
def executor(mine):
    return CudaExecutor(load_forward(mine / "engines" / "cuda"), WIDTH)


def batch_of(seed, versions):
    """Three requests over versions in turn, each with items of its own excluded: tokens, lengths, constraints."""
    draw = np.random.default_rng(seed)
    constraints = []
    for n in range(3):
        index = versions[n % len(versions)]
        excluded = draw.choice(len(index.rows), len(index.rows) // 2, replace=False)
        constraints.append(Constraint(index, index.blocked(excluded)))
    return draw.integers(0, 36, (3, 20)), np.array([20, 7, 13]), constraints


def hold_answers(got, want):
    for mine, theirs in zip(got, want, strict=True):
        assert np.array_equal(mine.paths, theirs.paths) and np.array_equal(mine.nodes, theirs.nodes)
        assert np.allclose(mine.scores, theirs.scores, atol=2e-4)


def test_versions_in_turns_need_no_graphs_and_are_answered_as_on_the_cpu(mine, executor):
    """More items, fewer, so few that beams die, other families; alone, in turns, and mixed in one batch."""
    versions = [index_of(tiny_catalogue(items, seed=seed)) for seed, items in enumerate((300, 330, 250, 9))]
    settings = Settings(mine, mine / "no-arena", WIDTH)
    (cpu,) = load_executors(settings, load_config(mine))
    for rows in (1, 2, 3):  # a mixed batch is a smaller one for each version
        executor.rehearse(rows, 20, versions[0])
    captured = executor.captured
    turns = [[version] for version in (*versions, *versions[::-1])] + [versions[:2], versions[1:]]
    for seed, turn in enumerate(turns):
        asked = batch_of(seed, turn)
        hold_answers(executor.answers(*asked), cpu.answers(*asked))
    executor.rehearse(3, 20, versions[1])
    assert executor.captured == captured > 0


def test_a_version_that_does_not_fit_gets_a_larger_room_in_which_the_old_one_has_place(mine, executor):
    old, new = index_of(tiny_catalogue(40)), index_of(tiny_catalogue(900, seed=1))
    first, second = batch_of(0, [old]), batch_of(1, [new])
    before = executor.answers(*first)
    assert executor.captured == 1
    grown = executor.answers(*second)
    assert executor.captured == 2
    hold_answers(executor.answers(*first), before)
    hold_answers(executor.answers(*second), grown)
    fresh = CudaExecutor(load_forward(mine / "engines" / "cuda"), WIDTH)
    hold_answers(grown, fresh.answers(*second))
    assert executor.captured == 2


def test_a_larger_room_is_no_smaller_anywhere():
    """After many items in small families, few in a wide one, and the other way round."""
    many = DeviceTree.of(index_of(tiny_catalogue(900, (40, 40, 40))), CPU)
    starts = [torch.tensor([0, count]) for count in (1, 1, 40)]
    few = DeviceTree(many.sizes, starts, [torch.arange(count) for count in (1, 1, 40)], [1, 1, 40])
    for first, second in ((many, few), (few, many)):
        room = TreeRoom(first)
        assert not room.fits(second)
        room = TreeRoom(second, room)
        assert room.fits(first) and room.fits(second)


def test_graphs_of_a_larger_room_share_memory_of_their_own(mine, monkeypatch):
    """Torch refuses a capture into memory of graphs that are all gone. With a stand-in of both."""
    pools = []
    monkeypatch.setattr("genrec.engine.cuda.generate.graph_pool", lambda device: object())
    monkeypatch.setattr("genrec.engine.cuda.generate.Replayed", lambda work, device, pool: pools.append(pool))
    small, large = (DeviceTree.of(index_of(tiny_catalogue(items)), CPU) for items in (40, 900))
    generator = DeviceGenerator(load_forward(mine / "engines" / "cuda"), small, WIDTH)
    for tree in (small, large, small):
        generator.use(tree)
        generator.prepare(1, 32)
        generator.prepare(2, 32)
    assert [pools.index(pool) for pool in pools] == 4 * [0] + 4 * [4]


def test_a_retired_version_leaves_nothing_on_the_device(executor):
    old, new = index_of(tiny_catalogue(300)), index_of(tiny_catalogue(310))
    for index in (new, old):  # the old one lies in the room
        executor.rehearse(1, 20, index)
    trees = [weakref.ref(executor._trees[index]) for index in (old, new)]
    del old, index
    gc.collect()
    assert trees[0]() is None and trees[1]() is not None
    hold_answers(executor.answers(*batch_of(0, [new])), executor.answers(*batch_of(0, [new])))


@pytest.mark.parametrize("seed", range(6))
def test_beam_search_in_a_room_is_that_of_the_tree_itself(seed):
    """Bit by bit, and as on the CPU: random trees after larger and smaller ones, blocked items, ties."""
    draw = np.random.default_rng(seed)
    sizes = tuple(int(t) for t in draw.integers(2, 20, 3))
    indices = [index_of(tiny_catalogue(items, sizes, seed)) for items in draw.integers(2, 200, 4).tolist()]
    trees, batch = [DeviceTree.of(index, CPU) for index in indices], 3
    room = TreeRoom(trees[0])
    for index, tree in zip(indices, trees, strict=True):
        if not room.fits(tree):
            room = TreeRoom(tree, room)
            assert all(room.fits(each) for each in trees[: trees.index(tree)])
        room.hold(tree)
        for own, pointers in zip(tree.pointers, room.tree.pointers, strict=True):
            assert torch.equal(pointers[: len(own)], own) and (pointers[len(own) :] == own[-1]).all()
        blocked = [index.blocked(draw.choice(len(index.rows), len(index.rows) // 2, replace=False))] * batch
        sides = []
        for each in (tree, room.tree):
            masks = nothing_blocked(each, batch)
            block(masks, blocked)
            sides.append((each, masks, [first_beams(batch, CPU)]))
        cpu = None
        for level, count in enumerate(room.tree.beam_counts(WIDTH), 1):
            least = tree.beam_counts(WIDTH)[level - 1]
            widest = sides[1][2][-1].nodes.shape[1]
            logits = draw.integers(-4, 4, (1, widest, sizes[level - 1])).astype(np.float32)
            for (each, masks, found), width in zip(sides, (least, count), strict=True):
                given = torch.from_numpy(logits[:, : found[-1].nodes.shape[1]]).expand(batch, -1, -1)
                found.append(expand(each, level, given, found[-1], width, masks[level - 1]))
            own, roomy = sides[0][2][-1], sides[1][2][-1]
            assert (roomy.nodes[:, least:] == -1).all()
            for name in ("nodes", "scores"):
                assert torch.equal(getattr(own, name), getattr(roomy, name)[:, :least]), name
            mine = logits[0, : 1 if cpu is None else len(cpu)]
            cpu = expand_on_cpu(Constraint(index, blocked[0]), level, mine, cpu, WIDTH)
            hold_equal(roomy, 0, cpu)


@torch.no_grad()
def test_what_was_recorded_once_answers_for_every_version(mine):
    """Recorded as a CUDA graph is: no Python runs again, and what is read is memory that was there."""
    sizes = (12, 12, 12)
    trees = [DeviceTree.of(index_of(tiny_catalogue(n, sizes, n)), CPU) for n in (300, 320, 200)]
    generator = DeviceGenerator(load_forward(mine / "engines" / "cuda"), trees[0], WIDTH)
    bucket = generator.prepare(2, 32)
    bucket.tokens.copy_(torch.randint(0, 36, bucket.tokens.shape, generator=torch.Generator().manual_seed(0)))
    bucket.lengths.fill_(32)
    recorded = make_fx(lambda: (generator.prefill(bucket), generator.search(bucket))[1])()
    bucket.prefill()
    answers = []
    for tree in (*trees, trees[0]):
        generator.use(tree)
        found, want = recorded(), bucket.search()
        assert torch.equal(found.nodes, want.nodes) and torch.equal(found.scores, want.scores)
        answers.append(found.paths)
    assert torch.equal(answers[0], answers[3]) and not torch.equal(answers[0], answers[1])
