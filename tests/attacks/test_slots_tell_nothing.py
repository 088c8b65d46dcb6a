"""A slot of the KV arena tells its new owner nothing of the last one, in whatever order strangers call inner models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from deploy.launcher import RunningServer
from ensembles.local import LocalRecommender
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import GenrecError, InputError, StaleHandle
from genrec.kv.arena import Arena
from genrec.search.scratch import Scratch
from genrec.steps import Tensors
from tests.serving.wire import ask

WIDTH, LEVELS, SIZE, SPAN = 16, 3, 12, 32
NOTHING = np.array([[-1]], np.int32)


class World:
    """The staged ensemble's steps, and an arena whose slots can be left in any state."""

    def __init__(self, recommender: LocalRecommender) -> None:
        self.steps = recommender.runtime._steps
        self.arena = Arena(recommender.settings.arena)
        self.index: ValidityIndex = self.steps["beam_search"]._indices.of(0)

    def call(self, step: str, request: Tensors) -> Tensors | GenrecError:
        (answer,) = self.steps[step].run([request])
        return answer

    def leave(self, content: np.ndarray) -> None:
        """Every slot's memory, the scratch slot's too; nobody must be at work."""
        memory = self.arena._bytes[self.arena._data :]
        memory[:] = np.resize(content, len(memory))

    def prefill(self, tokens: list[int]) -> Tensors:
        """A new request's handle and ticket."""
        padded = np.pad(np.array([tokens], np.int32), ((0, 0), (0, SPAN - len(tokens))))
        ticket = np.array([[5, len(tokens), 0, 0, 0, 0]])
        answer = self.call("prefill", {"tokens": padded, "ticket": ticket})
        assert isinstance(answer, dict), answer
        return {"kv": answer["kv"], "ticket": ticket}

    def first_beams(self, held: Tensors) -> Tensors:
        answer = self.call("beam_search", {**held, "excluded": NOTHING})
        assert isinstance(answer, dict), answer
        return answer

    def end(self, held: Tensors) -> None:
        """Give the slot back, if it is not yet."""
        try:
            handle = tuple(int(x) for x in held["kv"][0])
            self.arena.hold(handle)
            self.arena.release(handle)
        except StaleHandle:
            pass
        assert self.arena.usage()["free"] == self.arena.slots - 1


@pytest.fixture(scope="module")
def world(tiny: Path) -> Iterator[World]:
    with LocalRecommender(tiny, WIDTH, slots=2, decoder="staged") as recommender:
        yield World(recommender)


def all_of_level(world: World, held: Tensors, level: int) -> Tensors:
    """Beams as `beam_search` takes them: every path of a level that catalogue and width have."""
    nodes = np.arange(min(world.index.node_count(level), WIDTH), dtype=np.int32)[None]
    paths = world.index.paths(level)[nodes[0]][None]
    return {
        **held, "paths": paths, "nodes": nodes, "scores": np.zeros(nodes.shape, np.float32),
        "level": np.array([[level]], np.int32), "excluded": NOTHING,
    }  # fmt: skip


def to_score(held: Tensors, codes: list[int], parents: list[int], level: int) -> Tensors:
    return {
        **held, "codes": np.array([codes], np.int32), "parents": np.array([parents], np.int32),
        "level": np.array([[level]], np.int32),
    }  # fmt: skip


def test_logits_that_nobody_wrote_are_not_read(world: World) -> None:
    held = world.prefill([1, 14, 25])
    for level in (1, 2):
        answer = world.call("beam_search", all_of_level(world, held, level))
        assert isinstance(answer, StaleHandle)
        assert str(answer).endswith(f"for beam_search of level 1, not for beam_search of level {level + 1}")
    assert len(world.first_beams(held)["paths"][0]) == SIZE  # the request itself is none the worse
    answer = world.call("beam_search", all_of_level(world, held, 1))
    assert isinstance(answer, StaleHandle) and "waits for decode of level 1" in str(answer)
    world.end(held)


def test_kv_that_nobody_wrote_is_not_read(world: World) -> None:
    held = world.prefill([1, 14, 25])
    answer = world.call("decode", to_score(held, [1], [0], 1))
    assert isinstance(answer, StaleHandle) and "waits for beam_search of level 1" in str(answer)
    world.first_beams(held)
    answer = world.call("decode", to_score(held, [1], [0], 2))
    assert isinstance(answer, StaleHandle) and "waits for decode of level 1" in str(answer)
    answer = world.call("decode", to_score(held, [1, 2], [0, 1], 1))
    assert isinstance(answer, InputError) and "parents: go up to 1 (accepted: below 1" in str(answer)
    world.end(held)


def test_no_step_is_done_twice(world: World) -> None:
    held = world.prefill([1, 14, 25])
    beams = world.first_beams(held)
    again = world.call("beam_search", {**held, "excluded": NOTHING})
    assert isinstance(again, StaleHandle)
    scored = {name: beams[name] for name in ("codes", "parents", "level")}
    assert isinstance(world.call("decode", held | scored), dict)
    assert isinstance(world.call("decode", held | scored), StaleHandle)
    world.end(held)


@pytest.mark.parametrize(("codes", "parents"), [([3], [0]), ([-1], [-1])], ids=["one beam", "no pass"])
def test_no_more_logits_are_read_than_the_last_pass_wrote(
    world: World, codes: list[int], parents: list[int]
) -> None:
    held = world.prefill([1, 14, 25])
    world.first_beams(held)
    assert isinstance(world.call("decode", to_score(held, codes, parents, 1)), dict)
    answer = world.call("beam_search", all_of_level(world, held, 1))
    assert isinstance(answer, InputError) and answer.field == "nodes"
    assert answer.limit.startswith(f"{len(codes) if codes != [-1] else 0}:")
    world.end(held)


def test_no_more_beams_kv_is_read_than_the_last_pass_wrote(world: World) -> None:
    held = world.prefill([1, 14, 25])
    beams = world.first_beams(held)
    scored = {name: beams[name] for name in ("codes", "parents", "level")}
    world.call("decode", held | scored)
    kept = {name: beams[name] for name in ("paths", "nodes", "scores", "level")}
    assert isinstance(world.call("beam_search", held | kept | {"excluded": NOTHING}), dict)
    beyond = len(scored["codes"][0])
    answer = world.call("decode", to_score(held, [1], [beyond], 2))
    assert isinstance(answer, InputError) and f"below {beyond}, the beams" in str(answer)
    world.end(held)


def test_a_prompt_is_as_long_as_it_was_written(world: World) -> None:
    """The rest of its span is padding."""
    for said in (2, 4, SPAN):
        held = world.prefill([1, 14, 25])
        held["ticket"] = np.array([[5, said, 0, 0, 0, 0]])
        answer = world.call("beam_search", {**held, "excluded": NOTHING})
        assert isinstance(answer, InputError) and "(accepted: 3, as it said to prefill)" in str(answer)
        world.end(held)


class Forger:
    """Draws calls of inner models: mostly what the ensemble would send next, often with something changed."""

    def __init__(self, seed: int, index: ValidityIndex) -> None:
        self._draw, self._index = np.random.default_rng(seed), index
        self.beams: Tensors | None = None

    def next(self, held: Tensors) -> tuple[str, Tensors]:
        draw = self._draw
        step = "beam_search" if self.beams is None or draw.random() < 0.5 else "decode"
        request = dict(held)
        if step == "beam_search":
            request["excluded"] = NOTHING
            if self.beams is not None and draw.random() < 0.9:
                request |= {name: self.beams[name] for name in ("paths", "nodes", "scores", "level")}
        elif self.beams is not None:
            request |= {name: self.beams[name] for name in ("codes", "parents", "level")}
        return step, self._changed(request) if draw.random() < 0.4 else request

    def _changed(self, request: Tensors) -> Tensors:
        draw = self._draw
        count = int(draw.integers(1, WIDTH + 1))
        changed = dict(request)
        if "level" in request and draw.random() < 0.5:
            changed["level"] = draw.integers(1, LEVELS, (1, 1)).astype(np.int32)
        if "nodes" in request and draw.random() < 0.7:
            most = self._index.node_count(int(changed["level"][0, 0]))
            changed["nodes"] = np.sort(draw.integers(0, most, (1, count))).astype(np.int32)
            changed["paths"] = self._index.paths(int(changed["level"][0, 0]))[changed["nodes"][0]][None]
            changed["scores"] = np.zeros((1, count), np.float32)
        if "codes" in request and draw.random() < 0.7:
            changed["codes"] = draw.integers(0, SIZE, (1, count)).astype(np.int32)
            most = int(draw.choice([1, 2, WIDTH]))
            changed["parents"] = np.sort(draw.integers(0, most, (1, count))).astype(np.int32)
        elif "codes" in request and draw.random() < 0.3:
            changed["codes"] = changed["parents"] = NOTHING
        if draw.random() < 0.2:
            changed["ticket"] = request["ticket"] + np.array([[0, draw.integers(-2, 3), 0, 0, 0, 0]])
        return changed


def told(world: World, seed: int) -> list[tuple[object, ...]]:
    """All that a stranger is told by some ten forged calls on a fresh handle."""
    forger, said = Forger(seed, world.index), []
    held = world.prefill([3, 15, 30])
    for _ in range(10):
        step, request = forger.next(held)
        answer = world.call(step, request)
        if isinstance(answer, GenrecError):
            said.append((step, type(answer), str(answer) if isinstance(answer, InputError) else ""))
        else:
            said.append((step, *(answer[name].tobytes() for name in sorted(answer) if name != "kv")))
            forger.beams = answer if step == "beam_search" else forger.beams
    world.end(held)
    return said


def test_whatever_the_last_owner_left_the_next_one_is_told_the_same(world: World) -> None:
    random = np.random.default_rng(5)
    answered = 0
    for seed in range(150):
        heard = []
        for content in (np.zeros(1), random.normal(size=99991)):
            world.leave(content.astype(np.float32).view(np.uint8))
            heard.append(told(world, seed))
        assert heard[0] == heard[1], seed
        answered += sum(step == "beam_search" and len(said) > 1 for step, *said in heard[0])
    assert answered > 150  # it is not all refusals


def test_work_memory_that_goes_from_batch_to_batch_tells_nothing(
    tiny: Path, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate` has no arena, but its work arrays are those of the requests before."""
    heard, take = [], Scratch.take
    with LocalRecommender(tiny, WIDTH) as local:
        for left in (0, 255, 63):

            def taken(room: Scratch, *what: object, left: int = left) -> np.ndarray:
                array = take(room, *what)
                array.view(np.uint8)[...] = left
                return array

            monkeypatch.setattr(Scratch, "take", taken)
            answers = local.recommend([items[n : n + 1 + n % 9] for n in range(20)], 10)
            heard.append([(answer["item_ids"].tobytes(), answer["scores"].tobytes()) for answer in answers])
    assert heard[0] == heard[1] == heard[2]


@pytest.mark.serving
def test_a_served_stranger_is_refused(server: RunningServer, items: list[int]) -> None:
    """Over gRPC, as an attacker would: a fresh handle, and beams of level 2 at once."""
    url = server.grpc_url
    ticket = np.array([[5, 3, 0, 0, 0, 0]])
    tokens = np.array([[1, 14, 25] + [0] * (SPAN - 3)], np.int32)
    held = {
        "kv": ask(tritonclient.grpc, url, {"tokens": tokens, "ticket": ticket}, "prefill")["kv"],
        "ticket": ticket,
    }
    beams = {
        "paths": np.arange(4)[None], "nodes": np.arange(4, dtype=np.int32)[None],
        "scores": np.zeros((1, 4), np.float32), "level": np.array([[1]], np.int32), "excluded": NOTHING,
    }  # fmt: skip
    with pytest.raises(InferenceServerException, match="waits for beam_search of level 1"):
        ask(tritonclient.grpc, url, held | beams, "beam_search")
    with pytest.raises(InferenceServerException, match="waits for beam_search of level 1"):
        ask(tritonclient.grpc, url, to_score(held, [1], [0], 2), "decode")
