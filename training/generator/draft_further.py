"""Train a draft head further: from the weights that it has, over the generator as it is now, on events that came since.

    genrec train artifacts/ml-1m --draft alone --events monday.csv tuesday.csv

The head learns what the generator expects now, behind what the users of the last file did before each of their events,
and behind as many older events as the generator's own further training takes. There is no validation, and Adam begins
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.checkpoint import generator_digest, load_generator
from genrec.nn.draft_checkpoint import WEIGHTS, load_draft, save_draft
from genrec.nn.draft_head import DraftHead
from genrec.nn.model import Generator
from training.data.events import read_events, who_came
from training.further import Further, learn_last, once, tell_users
from training.generator.draft import DraftSettings, head_loss, pace_of
from training.generator.further import REPLAY, FurtherRun, Newer, load_newer, load_older
from training.sharded.world import World

DRAFT = Further("draft", "draft head", WEIGHTS)
BATCH_ITEMS = 256  # where the recipe leaves them open: the fewest of a training in epochs


class DraftFurtherRun(FurtherRun[DraftHead]):
    """A head learns; its generator stays as it is."""

    name = "draft"

    def __init__(
        self, world: World, head: DraftHead, generator: Generator, settings: DraftSettings, catalogue: Catalogue,
        newer: Newer, seed: int,
    ) -> None:  # fmt: skip
        head.keep_first_level(generator)  # of the generator as it is now
        size = settings.batch_items or BATCH_ITEMS
        super().__init__(world, head, generator, pace_of(settings), catalogue, newer, size, seed)
        self.validity = settings.validity

    def loss(self, batch: np.ndarray, mine: np.ndarray) -> Tensor:
        """See `head_loss`."""
        return head_loss(self, self.model, batch, mine, True, self.validity)


def train_further(
    world: World, head: DraftHead, generator: Generator, catalogue: Catalogue, newer: Newer, older: Newer,
    settings: DraftSettings, seed: int = 0,
) -> tuple[DraftHead, dict[str, Any]]:  # fmt: skip
    """Returns the average, and what happened. All ranks call it, with the same models. Raises RankLost."""
    generator = generator.to(world.device).requires_grad_(False).eval()
    run = DraftFurtherRun(
        world, head.to(world.device), generator, settings, catalogue, newer.and_older(older), seed
    )
    report = once(run, newer.users)
    return run.average, {**report, "replayed": len(older.learnt)}


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: DraftSettings, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/draft.safetensors trained further on the last file of `events`; see
    `training.further.learn_last`.
    """
    model = artifact / "model"

    def learn() -> tuple[Callable[[Path], None], dict[str, Any]]:
        catalogue, files = Catalogue.load(artifact / CATALOGUE, titles=False), read_events(artifact, events)
        of, head = generator_digest(model), load_draft(model, of_this=False)
        tell_users(world, who_came(artifact, files))
        newer = load_newer(artifact, catalogue, files)
        older = load_older(artifact, catalogue, files, REPLAY * len(newer.learnt), seed)
        kept, report = train_further(
            world, head, load_generator(model), catalogue, newer, older, settings, seed
        )
        return partial(save_draft, kept, generator=of), report

    return learn_last(world, artifact, DRAFT, events, learn)
