"""A training on another device: nothing of it stays on the host, and it ends where one on the CPU does."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.errors import InputError
from genrec.nn.checkpoint import load_generator
from genrec.nn.ranker_checkpoint import load_ranker
from perf.quality.rank_quality import measure_ranker
from tests.training.elsewhere import Elsewhere, elsewhere
from tests.training.generator.test_draft import QUICK as QUICK_DRAFT
from tests.training.generator.test_draft_further import learn as learn_drafts
from tests.training.generator.test_train import TINY, data
from tests.training.hstu.test_hstu import fresh_model, some_model, some_ratings
from tests.training.hstu.test_hstu_further import NONE, some_users
from tests.training.hstu.test_hstu_further import SETTINGS as HSTU
from tests.training.hstu_next.test_hstu_next import SETTINGS as NEXT
from tests.training.hstu_next.test_hstu_next import fresh_model as fresh_next
from tests.training.hstu_next.test_hstu_next import some_timed
from tests.training.hstu_next.test_hstu_next_further import NOTHING
from tests.training.hstu_next.test_hstu_next_further import some_users as next_users
from tests.training.ranker.test_ranker import QUICK, ring_artifact
from tests.training.ranker.test_ranker_further import learn as learn_events
from training.data.histories import Histories
from training.device import use_device
from training.generator.draft import train_draft
from training.generator.run import GeneratorRun
from training.generator.train import train_generator
from training.hstu import settings as hstu_settings
from training.hstu.batches import held_out_samples
from training.hstu.further import train_further
from training.hstu.measure import scores_of
from training.hstu.train import train_hstu
from training.hstu_next.further import train_further as train_next_further
from training.hstu_next.measure import ranks_of
from training.hstu_next.train import train_hstu_next
from training.ranker.candidates import places_of
from training.ranker.train import ranker_artifact
from training.sharded.world import World

# It is not the device that torch takes it for.
pytestmark = pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter:UserWarning")
LAST_STEP = 11  # before a training is ended
LONG = partial(pytest.param, marks=pytest.mark.long)
Figures = dict[str, Any]


def device_of_test(there: bool) -> Any:
    """A context that names a device."""
    torch.set_num_threads(1)
    return elsewhere() if there else nullcontext("cpu")


def generator(folder: Path, there: bool, dropout: float = 0.3) -> tuple[Figures, Figures]:
    """Weights and log of a generator."""
    with device_of_test(there) as device:
        settings = replace(TINY, dropout=dropout)
        best, report = train_generator(World(device=device), *data(), settings, folder, 5, save_every_s=0.0)
        assert all(isinstance(each, Elsewhere) == there for each in best.state_dict().values())
        return {name: each.cpu() for name, each in best.state_dict().items()}, report


def ranker(folder: Path, there: bool, shared: bool) -> tuple[Figures, Figures]:
    """Weights and log of a ranker, its candidates made on the device too; and how it is evaluated there."""
    folder.mkdir()
    with device_of_test(there) as device:
        artifact = ring_artifact(folder)
        order = "split" if shared else "both"
        report = ranker_artifact(World(device=device), artifact, QUICK, folder / "state", order, shared)
        measured = measure_ranker(artifact, device)
        return dict(load_ranker(artifact / "model").state_dict()), {**report, "orders": measured["orders"]}


def ranker_further(folder: Path, there: bool) -> tuple[Figures, Figures]:
    """Weights of a ranker that was trained further, with candidates made on the device."""
    folder.mkdir()
    with device_of_test(there) as device:
        best, report = learn_events(World(device=device), ring_artifact(folder))
        assert all(isinstance(each, Elsewhere) == there for each in best.state_dict().values())
        return {name: each.cpu() for name, each in best.state_dict().items()}, {"log": [report]}


def draft(folder: Path, there: bool, joint: bool) -> tuple[Figures, Figures]:
    """Weights and log of a draft head."""
    folder.mkdir()
    with device_of_test(there) as device:
        artifact = ring_artifact(folder)
        given = Histories.load(artifact / "histories.parquet"), Catalogue.load(artifact / "catalogue.parquet")
        model, state = load_generator(artifact / "model"), folder / "state"
        settings = replace(QUICK_DRAFT, joint=True, dropout=0.0) if joint else QUICK_DRAFT
        *best, report = train_draft(World(device=device), *given, model, settings, DraftConfig(), state)
        weights = torch.nn.ModuleList(best).state_dict()
        assert all(isinstance(each, Elsewhere) == there for each in weights.values())
        return {name: each.cpu() for name, each in weights.items()}, report


def draft_further(folder: Path, there: bool) -> tuple[Figures, Figures]:
    """Weights of a draft head that was trained further."""
    with device_of_test(there) as device:
        _, best, report = learn_drafts(World(device=device))
        assert all(isinstance(each, Elsewhere) == there for each in best.state_dict().values())
        return {name: each.cpu() for name, each in best.state_dict().items()}, {"log": [report]}


def hstu(folder: Path, there: bool, further: bool) -> tuple[Figures, Figures]:
    """Weights and log of an HSTU ranker, new or trained further; and how it is evaluated there."""
    with device_of_test(there) as device:
        world, settings = World(device=device), replace(HSTU, epochs=3, tokens=1000)
        if further:
            ratings, learnt = some_users()
            best, report = train_further(world, ratings, learnt, NONE, some_model(), settings)
            report = {"log": [report]}
        else:
            ratings = some_ratings()
            best, report = train_hstu(world, ratings, fresh_model(), settings, folder)
        assert all(isinstance(each, Elsewhere) == there for each in best.state_dict().values())
        samples = held_out_samples(ratings, np.arange(len(ratings)), 0, best.config.max_history)
        scores = scores_of(best, ratings, samples, "")
        return {name: each.cpu() for name, each in best.state_dict().items()}, {**report, "scores": scores}


def hstu_next(folder: Path, there: bool, further: bool) -> tuple[Figures, Figures]:
    """Weights and log of an HSTU model of the next item, new or trained further; and how it is evaluated there."""
    with device_of_test(there) as device:
        timed, world = some_timed(), World(device=device)
        if further:
            best, report = train_next_further(world, next_users(), NOTHING, fresh_next(), NEXT)
            report = {"log": [report]}
        else:
            best, report = train_hstu_next(world, timed, fresh_next(), NEXT, folder)
        assert all(isinstance(each, Elsewhere) == there for each in best.state_dict().values())
        ranks = ranks_of(best, timed, places_of(timed.lengths, "test", 0), "")
        return {name: each.cpu() for name, each in best.state_dict().items()}, {
            **report,
            "orders": ranks.tolist(),
        }


@pytest.mark.parametrize(
    ("train", "more"),
    [(generator, {}), LONG(ranker, {"shared": True}), LONG(ranker, {"shared": False}), (ranker_further, {}),
     (draft, {"joint": False}), LONG(draft, {"joint": True}), (draft_further, {}),
     LONG(hstu, {"further": False}), (hstu, {"further": True}),
     LONG(hstu_next, {"further": False}), (hstu_next, {"further": True})],
    ids=["generator", "ranker", "ranker-with-a-backbone-of-its-own", "ranker-trained-further", "draft",
         "draft-and-generator", "draft-trained-further", "hstu-ranker", "hstu-ranker-trained-further",
         "hstu-next", "hstu-next-trained-further"],
)  # fmt: skip
def test_it_learns_there_what_it_learns_here(train: Any, more: dict[str, bool], tmp_path: Path) -> None:
    here, there = (train(tmp_path / str(n), bool(n), **more) for n in range(2))
    assert_alike(there, here)


def assert_alike(one: tuple[Figures, Figures], other: tuple[Figures, Figures]) -> None:
    assert one[0].keys() == other[0].keys() and one[1]["log"]
    for name, each in one[0].items():
        torch.testing.assert_close(each, other[0][name], rtol=1e-3, atol=1e-4, msg=name)
    for mine, theirs in zip(one[1]["log"], other[1]["log"], strict=True):
        # Of a training further it is rounded to 1e-4
        assert np.allclose(mine["loss"], theirs["loss"], rtol=1e-4, atol=1e-4)
    assert one[1].get("orders") == other[1].get("orders")
    np.testing.assert_allclose(one[1].get("scores", 0), other[1].get("scores", 0), rtol=0, atol=3e-4)


@pytest.mark.parametrize("first", [False, True], ids=["here-then-there", "there-then-here"])
def test_it_goes_on_on_the_other_device(first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(run: GeneratorRun, batch: np.ndarray, done: float, step: Any = GeneratorRun.step) -> float:
        if run.steps == LAST_STEP:
            raise KeyboardInterrupt
        return float(step(run, batch, done))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(GeneratorRun, "step", ended)
        generator(tmp_path / "moved", first, 0.0)
    moved = generator(tmp_path / "moved", not first, 0.0)
    assert moved[1]["resumed_after_step"] == LAST_STEP
    assert_alike(moved, generator(tmp_path / "whole", False, 0.0))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "device: is cuda, and torch finds no GPU (accepted: cpu, or a machine with a GPU)"),
        (["--ranker"], "device: is cuda, and torch finds no GPU"),
        (["--draft", "alone"], "device: is cuda, and torch finds no GPU"),
        (["--ranks", "2"], "ranks: is 2 with --device cuda (accepted: 1: one process computes on one GPU)"),
        (["--recipe", "hstu-next"], "device: is cuda, and torch finds no GPU"),
    ],
    ids=["generator", "ranker", "draft", "ranks", "hstu"],
)  # fmt: skip
def test_what_a_gpu_cannot_do_is_refused(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", str(ring_artifact(tmp_path)), "--device", "cuda", *asked]) == 2
    assert said in capsys.readouterr().err


def test_torchrun_s_ranks_have_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        InputError, match=r"device: is cuda under torchrun \(accepted: cpu; cuda in a process alone\)"
    ):
        use_device("cuda")


def test_evaluating_what_a_gpu_does_not_compute_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    artifact = ring_artifact(tmp_path)
    assert main(["evaluate", str(artifact), "--device", "cuda"]) == 2
    assert "device: is given for generator, which does not read it" in capsys.readouterr().err
    assert main(["evaluate", str(artifact), "--device", "cuda", "--ranker"]) == 2
    assert "device: is cuda, and torch finds no GPU" in capsys.readouterr().err
    assert main(["evaluate", str(artifact), "--device", "cuda", "--recipe", "hstu-next"]) == 2
    assert "device: is cuda, and torch finds no GPU" in capsys.readouterr().err


def test_bf16_is_refused_of_cpus_without_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hstu_settings, "features", frozenset)
    asked = hstu_settings.HstuSettings(bf16=True)
    asked.check_on(torch.device("cuda"))
    with pytest.raises(InputError, match="bf16: is asked for, on a CPU without avx512_bf16"):
        asked.check_on(torch.device("cpu"))


def test_a_tensor_left_on_the_host_is_noticed() -> None:
    """The device that is not there is as strict as one that is."""
    with elsewhere() as device:
        there = torch.arange(3, device=device)
        assert isinstance(there + 1, Elsewhere) and (there + 1).cpu().tolist() == [1, 2, 3]
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.arange(3)
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()


def test_chance_of_a_gpu_is_not_taken_up_on_the_cpu() -> None:
    world = World()
    world.seed_dropout(1)
    saved = world.random_state()
    wanted = torch.rand(3)
    assert not world.take_random_state({**saved, "cuda": saved["torch"]}) and not world.take_random_state({})
    assert not torch.equal(torch.rand(3), wanted), "left as it was"
    assert world.take_random_state(saved) and torch.equal(torch.rand(3), wanted)
