"""Train an HSTU ranker further: from the weights that it has, on events that came since.

    genrec train artifacts/ml-1m --recipe hstu-ranker --events monday.csv tuesday.csv

The events of the last file are candidates, once each; all that came before is history. There is no validation, since
the newest events are those to be learnt: what is kept is the moving average at the end. Adam begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from genrec import manifest
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.files import scratch_in
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu, save_hstu
from genrec.progress import counting
from genrec.rank.hstu import CONFIG, WEIGHTS
from training.embedding.table import Rows
from training.hstu_batches import Sample, batches_of, further_samples
from training.hstu_run import HstuRun
from training.hstu_settings import HstuSettings
from training.ratings import Ratings, load_ratings
from training.sharded.world import World

STAGE = "hstu"  # of the manifest: the one that made the model
LEARNT = "learnt"  # among its facts: sha256 of the files of events that were learnt since


class FurtherRun(HstuRun):
    """Once over some events, from a model's weights."""

    def __init__(
        self, world: World, ratings: Ratings, learnt: np.ndarray, model: HstuRanker, settings: HstuSettings,
        seed: int,
    ) -> None:  # fmt: skip
        """`learnt` int64[n]: the events, ascending."""
        items = model.of_item.weight.detach()[1:].cpu().numpy().copy()
        super().__init__(world, ratings, model, settings, seed)
        self.learnt = learnt
        self._begin_with(items)

    def _choose_validation(self) -> None:
        """None: what is newest is to be learnt."""

    def _begin_with(self, items: np.ndarray) -> None:
        """Rows float32[items, d], and their averages, as they are; without moments."""
        (merged,), (sharded,) = self.embeddings.merged, self.embeddings.sharded.values()
        (feature,), table = self.embeddings.features, sharded.table
        ids = merged.pack(feature, np.arange(len(items)))
        places, counts = table.kernels.by_owner(ids, self.world.ranks)
        first = int(counts[: self.world.rank].sum())
        mine = places[first : first + int(counts[self.world.rank])]
        state = np.zeros((len(mine), table.optimizer.width(table.dimension)), np.float32)
        self.rows.averages(state, table.dimension)[:] = items[mine]
        table.put(Rows(ids[mine], items[mine], state, np.zeros((len(mine), 2), np.uint32)))

    def batches(self, epoch: int) -> list[list[Sample]]:
        """See `HstuRun.batches`."""
        samples = further_samples(self.ratings, self.learnt, self.model.config.max_history)
        tokens = self.settings.tokens * self.settings.accumulate
        draw = np.random.default_rng([self.seed, epoch])
        return list(batches_of(samples, self.ratings.features.shape[1], tokens, draw))

    def once(self) -> tuple[HstuRanker, float]:
        """The moving average after all of them, and the mean loss; every batch's is from before it was learnt."""
        todo, losses = self.batches(0), []
        with counting("train hstu further", len(todo), "batch", disable=self.world.rank > 0) as bar:
            for batch in todo:
                losses.append(self.step(batch, len(losses) / len(todo)))
                bar.update()
        self._gather_items()
        return self.average, float(np.mean(losses))


def train_further(
    world: World,
    ratings: Ratings,
    learnt: np.ndarray,
    model: HstuRanker,
    settings: HstuSettings,
    seed: int = 0,
) -> tuple[HstuRanker, dict[str, object]]:
    """Returns the average, and what happened. All ranks call it, with the same model. Raises RankLost."""
    world.seed_dropout(seed)
    run = FurtherRun(world, ratings, learnt, model.to(world.device), settings, seed)
    kept, loss = run.once()
    facts = {"events": len(learnt), "users": len(np.unique(ratings.users[learnt])), "updates": run.steps}
    return kept, {**facts, "loss": round(loss, 4), "ranks": world.ranks}


def further_artifact(
    world: World, artifact: Path, events: Sequence[Path], settings: HstuSettings, seed: int = 0
) -> dict[str, Any] | None:
    """`artifact`/model/hstu.* trained further on the last file of `events`; None where it has learnt that file.

    Model and manifest are replaced at once, so that a server may start at any time. Raises InputError, ArtifactError,
    RankLost.
    """
    settings.check_on(world.device)
    made, sha = _made(artifact), manifest.digest_file(events[-1])
    if sha in made["facts"].get(LEARNT, ()):
        return None
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    with world.lead_first():  # the data set may have to be fetched
        ratings = load_ratings(artifact, catalogue, more=events)
    model = load_hstu(artifact / "model")
    ratings = replace(ratings, tasks=model.config.tasks)
    _check(artifact, model, catalogue, ratings)
    if settings.experts not in (0, model.config.experts):  # 0 is also what nobody asked for
        problem = f"is {settings.experts}, the model has {model.config.experts}"
        raise InputError("experts", problem, "as many as the model has")
    learnt = np.flatnonzero(ratings.file == len(events))
    if not len(learnt):
        raise InputError(str(events[-1]), "has no event that is not known already", "events that are new")
    kept, report = train_further(world, ratings, learnt, model, settings, seed)
    if world.rank == 0:
        former = made["facts"]
        facts = {**former, LEARNT: [*former.get(LEARNT, ()), sha], "further": report}
        with scratch_in(artifact / "model") as scratch:
            save_hstu(kept, scratch)
            manifest.replace(artifact, STAGE, made, {scratch / WEIGHTS: artifact / "model" / WEIGHTS}, facts)
    return report


def _made(artifact: Path) -> dict[str, Any]:
    """What the manifest says of the model, which is as it was made. Raises InputError, ArtifactError."""
    manifest.complete(artifact)
    made = manifest.read(artifact).get(STAGE)
    if made is None:
        raise InputError(
            "events",
            "are given, but there is no HSTU ranker to train further",
            "events of a model that was trained",
        )
    if not manifest.is_good(artifact, STAGE, made["key"]):
        problem = f"is not the file that stage `{STAGE}` made{manifest.anew(STAGE)}"
        raise ArtifactError(artifact / "model" / WEIGHTS, problem)
    return dict(made)


def _check(artifact: Path, model: HstuRanker, catalogue: Catalogue, ratings: Ratings) -> None:
    c, path = model.config, artifact / "model" / CONFIG
    there = (len(catalogue), tuple(catalogue.codebook_sizes), ratings.sizes, ratings.levels)
    if (c.items, c.codebook_sizes, c.features, c.ratings) != there:
        said = f"is of {c.items} items with codes {c.codebook_sizes}, {c.features} features and ratings to {c.ratings}"
        said += f"; the data has {there[0]}, {there[1]}, {there[2]} and {there[3]}"
        raise ArtifactError(path, f"{said}{manifest.anew(STAGE)}")
    if not np.array_equal(model.codes[1:].numpy(), catalogue.codes + c.code_starts):
        problem = f"is of another catalogue than {CATALOGUE}: items have other codes{manifest.anew(STAGE)}"
        raise ArtifactError(path, problem)
