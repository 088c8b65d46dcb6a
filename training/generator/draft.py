"""Train a draft head: alone on a frozen generator, or both together (NEZHA, Algorithm 3, equation 6).

    genrec train artifacts/ml-100k --draft alone

Alone takes minutes and leaves `model/model.safetensors` untouched, so that any checkpoint can be given one.
Both together begin from the generator's checkpoint and write it anew. Validation asks the head itself, in the
arithmetic that is served. What is kept is the moving average of the weights at the end of the schedule: NDCG@10 of a
few thousand users is too noisy to choose an epoch by (on Beauty it took the first of six).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genrec.artifact import load_config
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import Catalogue
from genrec.catalogue.validity import ValidityIndex
from genrec.draft.head import Drafter
from genrec.draft.options import DraftConfig
from genrec.draft.search import draft
from genrec.errors import ArtifactError, InputError
from genrec.files import scratch_in
from genrec.manifest import anew, read, replace
from genrec.nn.checkpoint import WEIGHTS, generator_digest, load_generator, save_generator
from genrec.nn.device import device_of
from genrec.nn.draft_checkpoint import save_draft, serving_tensors
from genrec.nn.draft_head import DraftHead, prompt_states
from genrec.nn.draft_loss import draft_sums
from genrec.nn.model import Generator
from genrec.search.lookup import lookup
from training.data.histories import Histories
from training.generator.evaluate import PAD
from training.generator.recipes import power_of_two
from training.generator.run import LEAST_RATE, VALIDATION_BEAMS, HistoryRun, WindowRun
from training.loop import SAVE_EVERY_S, Limits, train
from training.padding import padded
from training.recipe_file import MOST_AVERAGING, check_least, check_within
from training.run import Pace
from training.sharded.world import World

WARM_UP_STEPS = 50
OF_BOTH = ("dropout", "generator_rate")  # settings of no effect where the head alone learns


@dataclass(frozen=True)
class DraftSettings:
    """How a draft head is trained; chosen on validation items."""

    joint: bool = False  # the generator learns too
    epochs: int = 0  # 0: about four million items, 1 to 12
    batch_items: int = 0  # 0: about a thousand steps an epoch, within 256 to 1024
    learning_rate: float = 5e-3
    weight_decay: float = 0.05
    averaging: float = 0.99
    dropout: float = 0.05  # of the generator and of the head's inputs when both learn
    validity: float = 0.01  # weight of knowing which codes are valid, beside which of those (CodeLoss)
    generator_rate: float = 0.1  # of the learning rate, for the generator when both learn

    def __post_init__(self) -> None:
        check_least(self, {"epochs": 0, "batch_items": 0})
        check_within(
            self,
            {
                "learning_rate": 1, "weight_decay": 1, "averaging": MOST_AVERAGING, "dropout": 0.99,
                "validity": 100, "generator_rate": 1,
            },
        )  # fmt: skip
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in OF_BOTH and not self.joint and value != each.default:
                raise InputError(
                    each.name, f"is {value}, and the generator does not learn", "joint: true beside it"
                )


class DraftRecommender:
    """A `Recommender` that ranks as serving does: states from torch, the rest by the very code that serves."""

    def __init__(
        self,
        generator: Generator,
        head: DraftHead,
        catalogue: Catalogue,
        beam_width: int,
        mode: str = "every",
    ) -> None:
        self.generator, self.head, self.catalogue = generator, head, catalogue
        self.beam_width, self.mode = beam_width, mode
        self.index = ValidityIndex.build(
            catalogue.codes, catalogue.codebook_sizes, catalogue.popularity, catalogue.item_ids
        )
        self.valid = SemanticIdSet.build(self.index.paths(catalogue.levels))

    @torch.no_grad()
    def __call__(self, histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        """Item ids int64[B, k]."""
        drafter = Drafter(
            self.generator.config, self.head.options, serving_tensors(self.generator, self.head)
        )
        rows = [self.catalogue.rows_of(h) for h in histories]
        rows = [r[r >= 0].astype(np.int64) for r in rows]
        asked = (each.to(device_of(self.head)) for each in prompts(self.catalogue, drafter, rows))
        states = prompt_states(self.generator, self.head, *asked).cpu().numpy()
        ranking = np.full((len(rows), k), PAD)
        for line, r, s in zip(ranking, rows, states, strict=True):
            ids = self.answer(drafter, s, k, np.unique(r) if remove_seen else r[:0])
            line[: len(ids)] = ids
        return ranking

    def answer(self, drafter: Drafter, states: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """The k best item ids, or fewer, by a prompt's states; none of the catalogue rows `excluded`."""
        blocked = self.index.blocked(excluded)
        found = draft(self.mode, drafter, states, self.index, self.valid, self.beam_width, blocked)
        ids = self.catalogue.item_ids
        return lookup(self.index, self.valid, ids, found.semantic_ids, found.scores, k, excluded).item_ids


def prompts(catalogue: Catalogue, drafter: Drafter, rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Tokens int64[B, S] of histories of catalogue rows, placeholders behind each, and lengths int64[B] without these.

    The newest items that the generator reads; an empty history is as long as one item.
    """
    config = drafter.config
    placeholders = config.vocab_size + np.arange(drafter.placeholders)
    newest = [catalogue.codes[r[-config.max_history :]] + np.array(config.code_offsets) for r in rows]
    histories = [codes.ravel() if len(codes) else np.zeros(config.levels, np.int64) for codes in newest]
    tokens, lengths = padded([np.concatenate((history, placeholders)) for history in histories])
    return tokens, lengths - drafter.placeholders


def head_loss(
    run: WindowRun[Any], head: DraftHead, batch: np.ndarray, mine: np.ndarray, expected: bool, validity: float
) -> Tensor:
    """A head's, of windows `mine` int64[m] of a batch: summed over levels, of each the mean over the whole batch.

    Of what the generator expects, along items that are drawn alike on all ranks and devices, or of the next item.
    """
    rows, asked = run.items_of(batch[mine])
    chance = chance_of(run, batch)[mine, : rows.shape[1]].to(rows.device) if expected else None
    sums = draft_sums(run.generator, head, run.tree, rows, asked, chance, validity)
    return sums.sum() / run.targets_of(batch)[0]


def chance_of(run: WindowRun[Any], batch: np.ndarray) -> Tensor:
    """What an update draws items by: float32[w, n, 2]."""
    draw = np.random.default_rng([run.seed, run.steps, len(batch)])
    longest = int((batch[:, 1] - batch[:, 0]).max())
    return torch.from_numpy(draw.random((len(batch), longest, 2), np.float32))


class DraftRun(HistoryRun[nn.ModuleList]):
    """A draft head, and its generator where both learn."""

    name = "draft"

    def __init__(
        self, world: World, generator: Generator, head: DraftHead, settings: DraftSettings, catalogue: Catalogue,
        histories: Histories, seed: int,
    ) -> None:  # fmt: skip
        pace = pace_of(settings)
        shares = {head: 1.0, generator: settings.generator_rate} if settings.joint else {head: 1.0}
        super().__init__(world, nn.ModuleList(shares), generator, pace, catalogue, histories, seed, shares)
        self.head, self.joint, self.validity = head, settings.joint, settings.validity
        self.batch_items = settings.batch_items or power_of_two(self.events / 1000, 256, 1024)
        self.recommend = DraftRecommender(*self.averaged(), catalogue, VALIDATION_BEAMS)

    def averaged(self) -> tuple[Generator, DraftHead]:
        """The generator is as it was where the head alone learns."""
        head, generator = (*self.average, self.generator)[:2]
        return generator, head

    def loss(self, batch: np.ndarray, mine: np.ndarray) -> Tensor:
        """The head's, of windows `mine` int64[m]; and the generator's where it learns."""
        loss = head_loss(self, self.head, batch, mine, not self.joint, self.validity)
        return loss + super().loss(batch, mine) if self.joint else loss


def pace_of(settings: DraftSettings) -> Pace:
    """How fast a head learns."""
    return Pace(settings.learning_rate, settings.weight_decay, settings.averaging, WARM_UP_STEPS, LEAST_RATE)


def fresh_head(generator: Generator, options: DraftConfig, settings: DraftSettings, seed: int) -> DraftHead:
    """As training begins; the generator is made ready to learn, or to stay as it is."""
    torch.manual_seed(seed)
    generator.requires_grad_(settings.joint).train(settings.joint)
    for module in generator.modules():
        if isinstance(module, nn.Dropout):
            module.p = settings.dropout
    head = DraftHead(generator.config, options, settings.dropout if settings.joint else 0.0)
    head.start_from(generator)
    if not settings.joint:
        head.keep_first_level(generator)
    return head


def train_draft(
    world: World, histories: Histories, catalogue: Catalogue, generator: Generator, settings: DraftSettings,
    options: DraftConfig, state: Path, seed: int = 0, minutes: float | None = None, save_every_s: float = SAVE_EVERY_S,
) -> tuple[Generator, DraftHead, dict[str, object]]:  # fmt: skip
    """Learn from `histories.cut(2)`. Returns generator and head as averaged at the end, and what happened.

    Goes on from the checkpoint in `state`. All ranks call it, with the same generator. Raises RankLost, ArtifactError,
    and InputError where there is nothing to learn.
    """
    head = fresh_head(generator, options, settings, seed).to(world.device)
    run = DraftRun(world, generator.to(world.device), head, settings, catalogue, histories, seed)
    world.seed_dropout(seed)
    epochs = settings.epochs or min(max(round(4_000_000 / max(run.events, 1)), 1), 12)
    limits = Limits(epochs, epochs, minutes)  # it never loses patience: the end is what is kept
    report = train(world, run, limits, state, save_every_s)
    return *run.averaged(), {"seed": seed, "joint": settings.joint, "epochs": epochs, **report}


def draft_artifact(
    world: World, artifact: Path, settings: DraftSettings, state: Path, seed: int = 0, minutes: float | None = None
) -> dict[str, object]:  # fmt: skip
    """Give the generator in `artifact`/model a draft head beside it. Returns what happened. All ranks call it.

    Raises InputError, ArtifactError, RankLost.
    """
    load_config(artifact).check_codes_alone("a draft head")
    of = generator_digest(artifact / "model")  # another process may train it meanwhile
    trained = read(artifact).get("train")
    if settings.joint and trained is None:
        raise ArtifactError(artifact / "model" / WEIGHTS, f"is of no training{anew(artifact, 'train')}")
    generator, head, report = train_draft(
        world, Histories.load(artifact / "histories.parquet"), Catalogue.load(artifact / "catalogue.parquet"),
        load_generator(artifact / "model"), settings, DraftConfig(), state, seed, minutes,
    )  # fmt: skip
    if world.rank == 0:
        if trained is not None and settings.joint:
            _replace_generator(artifact, trained, generator, report)
        save_draft(head, artifact / "model", None if settings.joint else of)
    return report


def _replace_generator(
    artifact: Path, made: dict[str, Any], generator: Generator, report: dict[str, object]
) -> None:
    """Put one that has learnt with a head in the place of the one that was `made`. A kill leaves a whole stage, and the
    same training goes on to its head. Raises ArtifactError.
    """
    with scratch_in(artifact / "model") as scratch:
        save_generator(generator, scratch)
        written = {scratch / WEIGHTS: artifact / "model" / WEIGHTS}
        replace(artifact, "train", made, written, {**made["facts"], "with_draft": report})
