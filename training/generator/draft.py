"""Train a draft head: alone on a frozen generator, or both together (NEZHA, Algorithm 3, equation 6).

    genrec train artifacts/ml-100k --draft alone

Alone takes minutes and leaves `model/model.safetensors` untouched, so that any checkpoint can be given one.
Both together begin from the generator's checkpoint and write it anew. Validation asks the head itself, in the
arithmetic that is served. What is kept is the moving average of the weights at the end of the schedule: NDCG@10 of a
few thousand users is too noisy to choose an epoch by (on Beauty it took the first of six).
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

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
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.device import device_of
from genrec.nn.draft_checkpoint import save_draft, serving_tensors
from genrec.nn.draft_head import DraftHead, prompt_states
from genrec.nn.draft_loss import draft_losses
from genrec.nn.loss import level_losses
from genrec.nn.model import Generator
from genrec.progress import counting
from genrec.search.lookup import lookup
from training.data.histories import Histories
from training.data.windows import batches, check_some, cut_windows, gather, training_rows, whole_share
from training.generator.evaluate import PAD, evaluate
from training.generator.recipes import power_of_two
from training.padding import padded
from training.updates import cosine, follow, update

VALIDATION_USERS = 2000
VALIDATION_BEAMS = 32
WARM_UP_STEPS = 50
LEAST_RATE = 0.005  # of the learning rate, at the end


@dataclass(frozen=True)
class DraftSettings:
    """How a draft head is trained; chosen on validation items."""

    epochs: int = 0  # 0: about four million items, 1 to 12
    batch_items: int = 0  # 0: about a thousand steps an epoch, within 256 to 1024
    learning_rate: float = 5e-3
    weight_decay: float = 0.05
    averaging: float = 0.99
    dropout: float = 0.05  # of the generator and of the head's inputs when both learn
    validity: float = 0.01  # weight of knowing which codes are valid, beside which of those (CodeLoss)
    generator_rate: float = 0.1  # of the learning rate, for the generator when both learn


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


class DraftRun:
    """A generator, its draft head and the averages of what learns."""

    def __init__(
        self, generator: Generator, options: DraftConfig, settings: DraftSettings, joint: bool, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.joint, self.steps = settings, joint, 0
        self.generator = generator.requires_grad_(joint)
        self.head = DraftHead(generator.config, options, settings.dropout if joint else 0.0)
        self.head.start_from(generator)
        if not joint:
            self.head.keep_first_level()
        self.models = nn.ModuleList([self.generator, self.head]).to(device_of(generator))
        self.average = copy.deepcopy(self.models).eval()
        groups = [(self.head, 1.0), *([(self.generator, settings.generator_rate)] if joint else [])]
        self.shares = [rate for _, rate in groups for _ in range(2)]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": [p for p in m.parameters() if (p.dim() > 1) is matrix],
                 "weight_decay": settings.weight_decay if matrix else 0.0}
                for m, _ in groups
                for matrix in (True, False)
            ],
            lr=settings.learning_rate, betas=(0.9, 0.98),
        )  # fmt: skip

    def step(self, tree: Tree, rows: Tensor, real: Tensor, done: float) -> Tensor:
        """One update on rows [B, n]; `done` in 0..1 places it on the cosine. Returns draft losses [L]."""
        losses = draft_losses(
            self.generator, self.head, tree, rows, real, not self.joint, self.settings.validity
        )
        total = losses.sum()
        if self.joint:
            total = total + level_losses(self.generator, tree, rows, real).sum()
        rate = self.settings.learning_rate * cosine(self.steps, WARM_UP_STEPS, done, LEAST_RATE)
        update(self.optimiser, total, [rate * share for share in self.shares])
        self.steps += 1
        follow(self.average, self.models, self.settings.averaging, self.steps)
        return losses.detach()


def train_draft(
    histories: Histories,
    catalogue: Catalogue,
    generator: Generator,
    settings: DraftSettings,
    options: DraftConfig,
    folder: Path,
    joint: bool = False,
    seed: int = 0,
    threads: int = 0,
) -> dict[str, object]:
    """Learn from `histories.cut(2)`; `folder` gets the head, and the generator when both learn.

    Raises InputError where there is nothing to learn.
    """
    if threads:
        torch.set_num_threads(threads)
    for module in generator.modules():
        if isinstance(module, nn.Dropout):
            module.p = settings.dropout
    run = DraftRun(generator, options, settings, joint, seed)
    rows, offsets = training_rows(histories.cut(2), catalogue.rows_of)
    batch_items = settings.batch_items or power_of_two(len(rows) / 1000, 256, 1024)
    device = device_of(generator)
    tree = Tree.of(catalogue).to(device)
    sample = histories.sample(VALIDATION_USERS, seed=0)
    recommend = DraftRecommender(*run.average, catalogue, VALIDATION_BEAMS)
    epochs = settings.epochs or min(max(round(4_000_000 / len(rows)), 1), 12)
    log: list[dict[str, object]] = []
    begun = time.monotonic()
    with counting("train draft", epochs * len(rows), "item") as bar:
        for epoch in range(1, epochs + 1):
            rng = np.random.default_rng([seed, epoch])
            run.head.train()
            run.generator.train(joint)  # a frozen generator does not drop anything
            todo = batches(cut_windows(offsets, generator.config.max_history, rng), batch_items, rng)
            check_some(todo)
            total = torch.zeros(catalogue.levels)
            for number, batch in enumerate(todo, 1):
                picked = torch.from_numpy(gather(rows, batch)).to(device)
                done = (epoch - 1 + (number - 1) / len(todo)) / epochs
                total += run.step(tree, picked.clamp(min=0), picked >= 0, done).cpu()
                bar.update(whole_share(len(rows), number, len(todo)))
                bar.set_postfix(loss=f"{float(total.sum()) / number:.3f}", refresh=False)
            figures = evaluate(recommend, sample, "validation", label="validate")
            log.append({"epoch": epoch, "loss": (total / len(todo)).tolist(), **figures})
    kept_generator, kept_head = run.average
    if joint:
        save_generator(kept_generator, folder)
    save_draft(kept_head, folder)
    seconds = round(time.monotonic() - begun, 1)
    return {"seed": seed, "joint": joint, "epochs": epochs, "log": log, "seconds": seconds}


def draft_artifact(
    artifact: Path, settings: DraftSettings, joint: bool = False, seed: int = 0, threads: int = 0,
    device: str = "cpu",
) -> dict[str, object]:  # fmt: skip
    """Give the generator in `artifact`/model a draft head beside it, trained on `device`. Returns what happened."""
    load_config(artifact).check_codes_alone("a draft head")
    return train_draft(
        Histories.load(artifact / "histories.parquet"), Catalogue.load(artifact / "catalogue.parquet"),
        load_generator(artifact / "model").to(device), settings, DraftConfig(), artifact / "model", joint, seed,
        threads,
    )  # fmt: skip
