"""Training a draft head: alone it leaves the generator as it was, together both learn; figures repeat."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cli.chain import How, make_draft
from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.errors import InputError
from genrec.manifest import read, record, verify
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.draft_checkpoint import load_draft
from genrec.nn.draft_head import DraftHead
from genrec.nn.draft_loss import CodeLoss, draft_sums
from genrec.nn.model import Generator
from perf.quality.draft_quality import Unverified
from tests.oracles.draft_twin import plain_logits, plain_states
from training.data.histories import Histories
from training.generator.draft import DraftRecommender, DraftRun, DraftSettings, train_draft
from training.generator.evaluate import PAD
from training.generator.recipes import Recipe
from training.sharded.world import World

SIZES = (4, 3)
OPTIONS = DraftConfig()
QUICK = DraftSettings(epochs=2, batch_items=64)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Users who walk round a ring of 12 items: item i is followed by item i + 1."""
    items = np.arange(12)
    codes = np.stack((items // 3, items % 3), axis=1).astype(np.int32)
    Catalogue(items + 100, codes, [str(i) for i in items], np.ones(12, np.int64), SIZES).save(
        tmp_path / "catalogue.parquet"
    )
    walks = [(np.arange(9) + start) % 12 + 100 for start in range(40)]
    histories = Histories(np.arange(40), np.concatenate(walks), np.arange(41) * 9)
    histories.save(tmp_path / "histories.parquet", [str(u) for u in range(40)])
    torch.manual_seed(0)
    config = Recipe(max_history=6, hidden_size=16, head_dim=8).model(SIZES)
    save_generator(Generator(config), tmp_path / "model")
    record(tmp_path, "train", "as made", (tmp_path / "model").iterdir(), {})
    return tmp_path


def run(
    artifact: Path, state: Path, settings: DraftSettings = QUICK, options: DraftConfig = OPTIONS
) -> tuple[Generator, DraftHead, dict[str, Any]]:  # fmt: skip
    return train_draft(
        World(), Histories.load(artifact / "histories.parquet"), Catalogue.load(artifact / "catalogue.parquet"),
        load_generator(artifact / "model"), settings, options, state,
    )  # fmt: skip


@pytest.mark.parametrize("validity", [1.0, 0.25])
def test_loss_is_the_twin_s(artifact: Path, validity: float) -> None:
    """Equation 6 by hand, of a catalogue with holes: every item after the first, every level, its own codes forced."""
    generator, whole = load_generator(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    catalogue = Catalogue(whole.item_ids[:8], whole.codes[1:9], whole.titles[:8], whole.popularity[:8], SIZES)
    head = DraftHead(generator.config, DraftConfig())
    rows, real = (
        torch.tensor([[2, 3, 0, 1], [7, 6, 0, 0]]),
        torch.tensor([[True] * 4, [True, True, False, False]]),
    )
    want: list[list[float]] = [[], []]
    holes = 0
    for row, length in ((0, 4), (1, 2)):
        for item in range(1, length):
            before = [
                int(c) + offset
                for r in rows[row, :item]
                for c, offset in zip(catalogue.codes[r], generator.config.code_offsets, strict=True)
            ]
            states, codes = plain_states(generator, head, before), catalogue.codes[rows[row, item]].tolist()
            for level in (0, 1):
                logits = plain_logits(generator, head, states, tuple(codes[:level]))
                all_codes = np.logaddexp.reduce(logits)
                like = (catalogue.codes[:, :level] == codes[:level]).all(axis=1)
                valid = np.logaddexp.reduce(logits[np.unique(catalogue.codes[like, level])])
                holes += valid < all_codes - 0.01
                want[level].append(valid - logits[codes[level]] + validity * (all_codes - valid))
    losses = draft_sums(generator, head, Tree.of(catalogue), rows, real, None, validity)
    assert losses.tolist() == pytest.approx([np.sum(w) for w in want], abs=1e-4)
    assert holes, "the catalogue has some"


@pytest.mark.parametrize("validity", [1.0, 0.25, 0.0])
@pytest.mark.parametrize("shares", [False, True])
def test_slope_is_the_twin_s(validity: float, shares: bool) -> None:
    """What CodeLoss says its gradient is, against torch's of the two parts written out."""
    torch.manual_seed(0)
    logits, invalid = torch.randn(6, 9, dtype=torch.float64), torch.rand(6, 9) < 0.4
    codes = (~invalid).double().argmax(-1)
    target = torch.rand(6, 9).masked_fill(invalid, -torch.inf).softmax(-1).double() if shares else codes
    slopes = []
    for twin in (False, True):
        x = logits.clone().requires_grad_()
        if twin:
            valid = x.masked_fill(invalid, -torch.inf).logsumexp(-1)
            wanted = (x * target).sum(-1) if shares else x.gather(1, codes[:, None])[:, 0]
            loss = valid - wanted + validity * (x.logsumexp(-1) - valid)
        else:
            loss = CodeLoss.apply(x, target, invalid, validity)
        (loss * torch.arange(6)).sum().backward()
        slopes.append((loss.detach(), x.grad))
    torch.testing.assert_close(slopes[0], slopes[1])


def test_head_begins_as_the_generator_does(artifact: Path) -> None:
    generator = load_generator(artifact / "model")
    head = DraftHead(generator.config, DraftConfig())
    head.start_from(generator)
    hidden = torch.randn(5, 3, 16)
    assert torch.allclose(head.logits(1, hidden, hidden[:, 0]), generator.head(hidden[:, 0], 1), atol=1e-6)


def test_alone_the_head_learns_to_say_what_the_generator_says(artifact: Path, tmp_path: Path) -> None:
    generator, catalogue = load_generator(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    torch.nn.init.normal_(generator.lm_head.weight, std=0.3)  # as made it finds all codes alike
    save_generator(generator, artifact / "model")
    settings = DraftSettings(epochs=12, batch_items=64)
    (kept, learnt, report), (_, other, again) = (run(artifact, tmp_path / n, settings) for n in ("a", "b"))
    assert all(torch.equal(kept.state_dict()[name], each) for name, each in generator.state_dict().items())
    assert [line["loss"] for line in report["log"]] == [line["loss"] for line in again["log"]]
    assert all(torch.equal(other.state_dict()[name], each) for name, each in learnt.state_dict().items())

    fresh = DraftHead(generator.config, DraftConfig()).eval()
    fresh.start_from(generator)
    rows = [np.arange(start, start + 6) % 12 for start in range(12)]
    far = [
        np.mean([divergence(generator, head, catalogue.codes[r]) for r in rows]) for head in (fresh, learnt)
    ]
    assert far[1] < far[0] / 2


@torch.no_grad()
def divergence(generator: Generator, head: DraftHead, codes: np.ndarray) -> float:
    """KL of the head's second level from the generator's after a history [n, L], as likely as its first codes are."""
    tokens = (codes + np.array(generator.config.code_offsets)).ravel().tolist()
    states, total = plain_states(generator, head, tokens), 0.0
    first = generator.head(generator.prefill(torch.tensor([tokens]))[0][0, -1], 1).softmax(-1)
    for code, share in enumerate(first):
        says = generator.head(generator.prefill(torch.tensor([[*tokens, code]]))[0][0, -1], 2).log_softmax(-1)
        drafts = torch.from_numpy(plain_logits(generator, head, states, (code,))).log_softmax(-1)
        total += float(share * (says.exp() * (says - drafts)).sum())
    return total


@pytest.mark.parametrize("transition", ["gru", "add", "none"])
@pytest.mark.parametrize("placeholders", [True, False])
def test_level_1_is_kept_where_it_is_the_generator_s_own(
    artifact: Path, tmp_path: Path, transition: str, placeholders: bool
) -> None:
    options = DraftConfig(transition, placeholders)
    _, head, _ = run(artifact, tmp_path / "state", options=options)
    generator = load_generator(artifact / "model")
    fresh = DraftHead(generator.config, options)
    fresh.start_from(generator)
    first = {name: tensor for name, tensor in fresh.state_dict().items() if "heads.0." in name}
    learnt = head.state_dict()
    kept = all(torch.equal(learnt[name], tensor) for name, tensor in first.items())
    assert first and kept == (transition != "none" or not placeholders)


def test_imitation_vanishes_where_the_head_says_what_the_generator_expects(artifact: Path) -> None:
    """At level 1 the head begins as the generator's own: cross entropy to its expectation is that one's entropy."""
    generator, catalogue = load_generator(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    head = DraftHead(generator.config, DraftConfig("gru", False))
    head.start_from(generator)
    rows, real = torch.tensor([[3, 4, 5, 6]]), torch.ones(1, 4, dtype=torch.bool)
    imitated = draft_sums(generator, head, Tree.of(catalogue), rows, real, torch.rand(1, 4, 2), 0.1)
    tokens = [
        int(c) + o
        for r in rows[0]
        for c, o in zip(catalogue.codes[r], generator.config.code_offsets, strict=True)
    ]
    entropies = []
    for items in (1, 2, 3):
        logits = generator.head(generator.prefill(torch.tensor([tokens[: 2 * items]]))[0][0, -1], 1)
        entropies.append(torch.distributions.Categorical(logits=logits).entropy().item())
    assert imitated[0].item() == pytest.approx(np.sum(entropies), abs=1e-4)


def test_histories_of_held_out_items_alone_are_refused(artifact: Path) -> None:
    """Else a head that has learnt nothing would be written, and said to be done."""
    Histories(np.arange(4), np.arange(12) + 100, np.arange(5) * 3).save(
        artifact / "histories.parquet", [str(u) for u in range(4)]
    )
    with pytest.raises(InputError, match="events: are none that can be learnt"):
        make_draft(artifact)
    assert not (artifact / "model" / "draft.safetensors").exists()


@pytest.mark.parametrize("remove_seen", [True, False])
def test_unverified_drafts_leave_gaps_where_verified_ones_answer(artifact: Path, remove_seen: bool) -> None:
    """With every tuple of codes an item nothing is lost, and verified or not the lists are the same."""
    generator, catalogue = load_generator(artifact / "model"), Catalogue.load(artifact / "catalogue.parquet")
    head = DraftHead(generator.config, DraftConfig()).eval()
    asked = [np.array([100, 101, 102]), np.array([107])]
    last = DraftRecommender(generator, head, catalogue, 12, "last")
    unverified = Unverified(generator, head, catalogue, 12)
    assert (last(asked, 6, remove_seen) == unverified(asked, 6, remove_seen)).all()
    holes = Catalogue(
        catalogue.item_ids[:7], catalogue.codes[:7], catalogue.titles[:7], catalogue.popularity[:7], SIZES
    )
    (gaps,) = Unverified(generator, head, holes, 12)([asked[0]], 12, False)
    (full,) = DraftRecommender(generator, head, holes, 12, "last")([asked[0]], 12, False)
    assert gaps[gaps != PAD].tolist() == full[:7].tolist() and (gaps == PAD).sum() == 5


def test_stage_is_reused_and_both_learn_together(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_draft(artifact, how=How(threads=1))
    make_draft(artifact, how=How(threads=1))
    done, again = capsys.readouterr().out.splitlines()
    assert done.startswith("draft: done") and again == "draft: still good"
    load_draft(artifact / "model")
    weights = artifact / "model" / "model.safetensors"
    *most, last = weights.read_bytes()
    weights.write_bytes(bytes([*most, last ^ 1]))  # as by a training on other cores
    make_draft(artifact, how=How(threads=1))
    assert capsys.readouterr().out.startswith("draft: done")
    load_draft(artifact / "model")
    alone = (artifact / "model" / "model.safetensors").read_bytes()
    make_draft(artifact, How(threads=1), {"joint": True})
    assert (artifact / "model" / "model.safetensors").read_bytes() != alone
    load_draft(artifact / "model")  # trained on the generator that is there now
    verify(artifact)
    assert read(artifact)["train"]["key"] == "as made"


def test_an_imported_generator_learns_nothing(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = artifact / "model" / "model.safetensors"
    record(artifact, "train", "imported", [weights], {"imported": "a checkpoint"})
    before = weights.read_bytes()
    assert main(["train", str(artifact), "--draft", "joint"]) != 0
    assert "model: was imported from a checkpoint (accepted: --ranker or --draft" in capsys.readouterr().err
    assert weights.read_bytes() == before


@pytest.mark.parametrize("joint", [False, True])
def test_the_same_command_goes_on_where_it_was_ended(
    artifact: Path, tmp_path: Path, joint: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    whole = shutil.copytree(artifact, tmp_path / "whole")
    changes = {"joint": joint, "epochs": 3}
    make_draft(whole, How(threads=1), changes)

    def ended(run: DraftRun, batch: np.ndarray, done: float, step: Any = DraftRun.step) -> float:
        if done > 0.5:
            raise KeyboardInterrupt
        return float(step(run, batch, done))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(DraftRun, "step", ended)
        make_draft(artifact, How(threads=1), changes)
    make_draft(artifact, How(threads=1), changes)
    assert "draft: goes on after step" in capsys.readouterr().out
    for name in ("draft.safetensors", "model.safetensors"):
        wanted, found = (load_file(each / "model" / name) for each in (whole, artifact))
        assert all(torch.equal(found[key], each) for key, each in wanted.items())
    verify(artifact)
    assert not any((artifact / ".training").iterdir())


def test_the_clock_ends_it(artifact: Path) -> None:
    """With what it has learnt by then, which its stage says."""
    assert main(["train", str(artifact), "--draft", "alone", "--minutes", "0.00001"]) == 0
    facts = read(artifact)["draft"]["facts"]
    assert [each["epoch"] for each in facts["log"]] == [1] and facts["epochs"] == 12
    assert load_draft(artifact / "model")


def test_a_recipe_file_changes_its_settings(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--recipe draft` is `--draft alone`; a file may say that both learn, as `--draft joint` does."""
    train, mine = ["train", str(artifact), "--threads", "1"], artifact / "mine.json"
    mine.write_text('{"recipe": "draft", "joint": true, "epochs": 2, "validity": 0.5}')
    assert main([*train, "--recipe", str(mine)]) == 0
    facts = read(artifact)["draft"]["facts"]
    assert facts["joint"] is True and facts["epochs"] == 2
    mine.write_text('{"recipe": "draft", "joint": true}')
    for asked, says in (
        (["--draft", "joint"], "draft: done"), (["--recipe", str(mine)], "draft: still good"),
        (["--recipe", "draft"], "draft: done"), (["--draft", "alone"], "draft: still good"),
    ):  # fmt: skip
        assert main([*train, *asked]) == 0
        assert says in capsys.readouterr().out
    assert main([*train, "--recipe", "draft", "--own-backbone"]) != 0
    assert "own-backbone: is given for draft, which does not read it" in capsys.readouterr().err
