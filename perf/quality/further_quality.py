"""What is training further worth, beside leaving a model as it is and training it anew?

    genrec bench further_quality artifacts/ml-100k [--seeds 0,1,2] [--base 0.5] [--files 6] [--events 5000]

Of a data set with times, a model is trained on the oldest share of the events (`before`). It learns the next ones as
`genrec train --events` does, file after file in order of time (`further`). Another one is trained on all of these
events at once (`anew`), under the same semantic IDs, which are of the oldest events: what training further could hope
for. All of them are asked for the events of the twentieth of the data after that, each behind all that its user did
before it, in the files and in the test too. `genrec train` learns all of a user's items but the two newest, and all his
ratings but the ten newest: `before` and `anew` are made so.

Of the generator: HR@10 and NDCG@10 of its list, without items of the history, those of the list that its draft head
drafts, and the loss of the item that came, over all levels. Of the HSTU ranker, where the data has ratings: GAUC of
liked ones, in lists of ten, without features of users, which new ones do not have. Of HSTU for the next item: HR@10 and
NDCG@10 over all items but those of the history. Figures are means over events, of GAUC over those of users with both
labels; the error of a difference is over users, whose events are taken together, and over seeds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.beam import Tree
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.draft_checkpoint import load_draft, save_draft
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu, load_hstu_next, save_hstu
from genrec.nn.hstu_next import HstuNext
from genrec.nn.loss import level_sums
from genrec.nn.model import Generator
from genrec.progress import counting
from perf.kit import report
from perf.quality.further_spans import Spans, cut
from perf.quality.table_quality import HR, NDCG, Users, ratios_of, show, summary, table_of
from training.data.events import read_events
from training.data.histories import RATINGS
from training.data.windows import gather
from training.generator import draft_further as of_draft
from training.generator import further as of_generator
from training.generator.draft import DraftRecommender, DraftSettings, draft_artifact
from training.generator.evaluate import Recommender, hits
from training.generator.recipes import Recipe
from training.generator.recommend import model_recommender
from training.hstu import further as of_hstu
from training.hstu.batches import events_of, further_samples
from training.hstu.gauc import gauc
from training.hstu.measure import scores_of
from training.hstu.ratings import Ratings, load_ratings
from training.hstu.settings import HstuSettings
from training.hstu.train import hstu_artifact
from training.hstu_next import further as of_next
from training.hstu_next.measure import ranks_of
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.train import hstu_next_artifact
from training.sharded.world import World
from training.stages import metadata_of, recipe, train

BEAM_WIDTH, TOP_K, BATCH = 32, 10, 128
BEFORE, FURTHER, ANEW = "before", "further", "anew"
LOSS, GAUC = "loss", "GAUC of ratings"
DRAFT_HR, DRAFT_NDCG = f"{HR} of drafts", f"{NDCG} of drafts"
NEXT_HR, NEXT_NDCG = f"{HR} of hstu-next", f"{NDCG} of hstu-next"
# Claim: an arm, the one that it is compared with, and by which figure.
COMPARED = {
    f"{arm}_over_{other}_{name}": (arm, other, figure)
    for name, figure in (
        ("hr10", HR), ("ndcg10", NDCG), ("loss", LOSS), ("draft_hr10", DRAFT_HR), ("draft_ndcg10", DRAFT_NDCG),
        ("gauc", GAUC),
        ("next_hr10", NEXT_HR), ("next_ndcg10", NEXT_NDCG),
    )
    for arm, other in ((FURTHER, BEFORE), (ANEW, BEFORE), (FURTHER, ANEW))
}  # fmt: skip


class Chosen(NamedTuple):
    """The settings of the models."""

    generator: Recipe
    draft: DraftSettings
    hstu: HstuSettings
    following: HstuNextSettings


class Asked(NamedTuple):
    """What every arm is asked for: the events of the test, as two models read them, and their ratings, where the data
    has any.
    """

    catalogue: Catalogue
    events: of_generator.Newer
    following: of_next.Learnt
    ratings: Ratings | None


def asked_of(spans: Spans) -> Asked:
    """Raises InputError, ArtifactError."""
    files, catalogue = [*spans.files, spans.test], Catalogue.load(spans.base / CATALOGUE, titles=False)
    stored = metadata_of(spans.base / "histories.parquet", "histories").schema.to_arrow_schema().names
    ratings = load_ratings(spans.base, catalogue, files) if RATINGS.name in stored else None
    given = spans.base, catalogue, read_events(spans.base, files)
    return Asked(catalogue, of_generator.load_newer(*given), of_next.load_newer(*given), ratings)


def per_event(sums: NDArray[np.float64], events: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of users over so many of their events [U], such that their mean is that over events: [U]."""
    return sums / events.mean()


def found_of(ranks: NDArray[np.int64], users: NDArray[np.int64], names: tuple[str, str]) -> Users:
    """By user, of places int64[n] of the events of `users` int64[n] in lists: among the first ten, and the gain."""
    gains = np.where(ranks < TOP_K, 1 / np.log2(ranks + 2), 0)
    _, starts, counts = np.unique(users, return_index=True, return_counts=True)
    sums = (np.add.reduceat(each, starts) for each in ((ranks < TOP_K).astype(float), gains))
    return {name: per_event(each, counts) for name, each in zip(names, sums, strict=True)}


def listed(
    recommend: Recommender, catalogue: Catalogue, newer: of_generator.Newer, names: tuple[str, str]
) -> Users:
    """See `found_of`, of the lists of a recommender behind what every user did before an event."""
    items, begins, ranks = catalogue.item_ids[newer.rows], newer.offsets[newer.users], []
    with counting("evaluate", len(newer.learnt), "event") as bar:
        for at in range(0, len(newer.learnt), BATCH):
            asked = newer.learnt[at : at + BATCH]
            behind = [items[begin:event] for begin, event in zip(begins[at : at + BATCH], asked, strict=True)]
            ranks.append(hits(recommend(behind, TOP_K, True), items[asked]))
            bar.update(len(asked))
    return found_of(np.concatenate(ranks), newer.users, names)


@torch.no_grad()
def losses_of(model: Generator, tree: Tree, newer: of_generator.Newer) -> NDArray[np.float64]:
    """By user, of the events that he is asked for."""
    sums, most = [], model.config.max_history
    users, starts, counts = np.unique(newer.users, return_index=True, return_counts=True)
    for begin, events in zip(newer.offsets[users], np.split(newer.learnt, starts[1:]), strict=True):
        of_user = 0.0
        for at in range(0, len(events), BATCH):
            asked = events[at : at + BATCH]
            windows = np.stack((np.maximum(begin, asked + 1 - most), asked + 1), 1)
            rows = torch.from_numpy(gather(newer.rows, windows)).clamp(min=0)
            last = torch.arange(rows.shape[1]) == torch.from_numpy(np.diff(windows) - 1)
            of_user += float(level_sums(model, tree, rows, last).sum())
        sums.append(of_user)
    return per_event(np.array(sums), counts)


def lists_of(model: Generator, catalogue: Catalogue, newer: of_generator.Newer) -> Users:
    """By user, of the events that he is asked for: found among the first ten, its gain, and the loss."""
    tree = Tree.of(catalogue)
    recommend = model_recommender(model, catalogue, BEAM_WIDTH, tree)
    return listed(recommend, catalogue, newer, (HR, NDCG)) | {LOSS: losses_of(model, tree, newer)}


def likes_of(model: HstuRanker, ratings: Ratings) -> Users:
    """AUC of the ratings of the last file, of every user who has both labels there, weighted by his ratings."""
    learnt = np.flatnonzero(ratings.file == ratings.file.max())
    samples = further_samples(ratings, learnt, model.config.max_history)
    scores, events = scores_of(model, ratings, samples, "evaluate")[:, 0], events_of(samples)
    liked, users = ratings.labels(events)[:, 0], ratings.users_of(events)
    areas, counts = [], []
    for user in np.unique(users):
        of_user = users == user
        area, known = gauc(users[of_user], liked[of_user], scores[of_user])
        if known:
            areas.append(area * of_user.sum())
            counts.append(of_user.sum())
    return {GAUC: per_event(np.array(areas), np.array(counts))}


def following_of(model: HstuNext, learnt: of_next.Learnt) -> Users:
    """By user, of the events that he is asked for: found among the first ten, and its gain."""
    cuts = learnt.events - learnt.timed.offsets[learnt.users]
    ranks = ranks_of(model, learnt.timed, np.stack((learnt.users, cuts), 1), "evaluate")
    return found_of(ranks, learnt.users, (NEXT_HR, NEXT_NDCG))


def figures_of(folder: Path, asked: Asked) -> Users:
    """Of the models in `folder`."""
    model = load_generator(folder)
    found = lists_of(model, asked.catalogue, asked.events)
    drafts = DraftRecommender(model, load_draft(folder), asked.catalogue, BEAM_WIDTH)
    found |= listed(drafts, asked.catalogue, asked.events, (DRAFT_HR, DRAFT_NDCG))
    found |= following_of(load_hstu_next(folder), asked.following)
    return found if asked.ratings is None else found | likes_of(load_hstu(folder), asked.ratings)


def learn_anew(artifact: Path, rated: bool, settings: Chosen, seed: int) -> None:
    """The models of `artifact`, as `genrec train` makes them."""
    with TemporaryDirectory() as state:
        train(World(), artifact, settings.generator, Path(state) / "generator", seed)
        draft_artifact(World(), artifact, settings.draft, Path(state) / "draft", seed)
        hstu_next_artifact(World(), artifact, settings.following, Path(state) / "hstu-next", seed)
        if rated:
            hstu_artifact(World(), artifact, settings.hstu, Path(state) / "hstu", seed)


def learn_further(spans: Spans, asked: Asked, settings: Chosen, seed: int) -> None:
    """The models of `spans.base`, file after file, as `genrec train --events` does."""
    folder, catalogue = spans.base / "model", asked.catalogue
    for number in range(1, len(spans.files) + 1):
        files = spans.files[:number]
        events = read_events(spans.base, files)
        given = spans.base, catalogue, events
        newer = of_generator.load_newer(*given)
        older = of_generator.load_older(*given, of_generator.REPLAY * len(newer.learnt), seed)
        model = load_generator(folder)
        head = load_draft(folder)
        kept, _ = of_generator.train_further(
            World(), model, catalogue, newer, older, settings.generator, seed
        )
        save_generator(kept, folder)
        over = World(), head, kept, catalogue, newer, older, settings.draft, seed
        save_draft(of_draft.train_further(*over)[0], folder)
        learnt = of_next.load_newer(*given)
        again = of_next.load_older(*given, of_next.REPLAY * len(learnt.events), seed)
        following = load_hstu_next(folder)
        save_hstu(
            of_next.train_further(World(), learnt, again, following, settings.following, seed)[0], folder
        )
        if asked.ratings is not None:
            ratings = load_ratings(spans.base, catalogue, files)
            ranker = load_hstu(folder)
            both = of_hstu.newer_and_older(ratings, number, seed)
            save_hstu(of_hstu.train_further(World(), ratings, *both, ranker, settings.hstu, seed)[0], folder)


def measure_seed(
    spans: Spans, asked: Asked, settings: Chosen, seed: int
) -> tuple[dict[str, Users], dict[str, float]]:
    """Arm -> figures of all users, and the seconds that its training took."""
    rated = asked.ratings is not None
    base, whole = spans.base / "model", spans.whole / "model"
    found: dict[str, Users] = {}
    seconds: dict[str, float] = {}
    for arm, folder, learn in (
        (BEFORE, base, lambda: learn_anew(spans.base, rated, settings, seed)),
        (FURTHER, base, lambda: learn_further(spans, asked, settings, seed)),  # of the models before
        (ANEW, whole, lambda: learn_anew(spans.whole, rated, settings, seed)),
    ):
        begun = time.monotonic()
        learn()
        seconds[arm] = time.monotonic() - begun
        found[arm] = figures_of(folder, asked)
        show(seed, f"{arm}, {seconds[arm]:.0f} s", found[arm])
    return found, seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line per training, a table and, last, one JSON object."""
    parser = report.arguments("further_quality", __doc__)
    report.add_artifact(parser)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--base", type=float, default=0.5, help="share of the events that are there first")
    parser.add_argument("--files", type=int, default=6, help="learnt one after the other")
    parser.add_argument("--events", type=int, default=5000, help="of a file")
    parser.add_argument("--threads", type=int, default=0, help="of training; 0: all cores")
    a = parser.parse_args(argv)
    seeds = report.numbers_of(a, "seeds", 0)
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    with TemporaryDirectory() as folder:
        spans = cut(a.artifact, Path(folder), a.base, a.files, a.events)
        asked = asked_of(spans)
        settings = Chosen(recipe(a.artifact), DraftSettings(), HstuSettings(), HstuNextSettings())
        measured = [measure_seed(spans, asked, settings, seed) for seed in seeds]
    found, seconds = zip(*measured, strict=True)
    compared = summary(found, COMPARED)
    print(table_of(compared))
    claims = ratios_of(compared, COMPARED)
    spread = {claim: (min(of["ratios"]), max(of["ratios"])) for claim, of in compared.items()}
    told = {
        "asked": {"events": len(asked.events.learnt), "users": len(np.unique(asked.events.users))},
        "seconds": {arm: float(np.mean([each[arm] for each in seconds])) for arm in seconds[0]},
        "compared": [*compared.values()],
    }
    run.publish(claims | told, repeats=len(seeds), spread=spread)


if __name__ == "__main__":
    main()
