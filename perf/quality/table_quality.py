"""Do dynamic tables train to the quality of a static one, with fp16 rows and bf16 products too; and do experts add?

    genrec bench table_quality artifacts/ml-100k [--seeds 0,1,2]

Trains the HSTU ranker of ratings with static tables, torch's own embeddings in the Adam of all other weights; with
dynamic ones; with rows of those which are cold in fp16; with dense products in bf16; and with four experts instead of
one MLP. Then the HSTU model of the next item with its items' rows in a static table, and in a dynamic one that is read
whole at every step. Arms of a seed begin with the same weights and rows, but for those of experts, and see the same
batches. Rows of the ranker's static tables that are in no batch move nevertheless, by their momentum and their decay;
those of dynamic ones stand still.

Of the ranker the ten newest ratings of every user are held out, as `genrec evaluate` does: GAUC, and NDCG@10 of the ten
in the order of their scores, over users with both labels. Of the model of the next item it is the newest item, in the
whole catalogue. Every figure is a mean over users, so two arms are compared user by user and seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.rank.hstu import HstuConfig
from perf.kit import report
from perf.kit.turns import order
from perf.quality.table_arms import (
    BF16,
    COLD,
    DYNAMIC,
    EXPERTS,
    NEXT_DYNAMIC,
    NEXT_STATIC,
    NEXTS,
    RANKERS,
    STATIC,
    cold_share,
    learn,
    next_run,
    possible,
    ranker_run,
)
from training.hstu.batches import events_of, held_out_samples
from training.hstu.gauc import gauc
from training.hstu.measure import gauc_name, scores_of
from training.hstu.ratings import HELD_OUT, Ratings, load_ratings
from training.hstu.run import HstuRun
from training.hstu.settings import HstuSettings
from training.hstu_next.measure import ranks_of
from training.hstu_next.run import HstuNextRun
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import Timed, load_timed
from training.loop import Limits
from training.ranker.candidates import places_of

NEXT = HstuNextSettings(epochs=10)  # fewer than are best, to be done in minutes: both arms are alike
GAUC, LISTS, HR, NDCG = gauc_name(4), "NDCG@10 of lists", "HR@10", "NDCG@10"
# Claim: an arm, the one that it is compared with, and by which figure.
COMPARED = {
    "dynamic_over_static_gauc": (DYNAMIC, STATIC, GAUC),
    "cold_over_dynamic_gauc": (COLD, DYNAMIC, GAUC),
    "bf16_over_dynamic_gauc": (BF16, DYNAMIC, GAUC),
    "experts_over_one_mlp_gauc": (EXPERTS, DYNAMIC, GAUC),
    "dynamic_over_static_lists_ndcg10": (DYNAMIC, STATIC, LISTS),
    "cold_over_dynamic_lists_ndcg10": (COLD, DYNAMIC, LISTS),
    "bf16_over_dynamic_lists_ndcg10": (BF16, DYNAMIC, LISTS),
    "experts_over_one_mlp_lists_ndcg10": (EXPERTS, DYNAMIC, LISTS),
    "dynamic_over_static_hr10": (NEXT_DYNAMIC, NEXT_STATIC, HR),
    "dynamic_over_static_ndcg10": (NEXT_DYNAMIC, NEXT_STATIC, NDCG),
}
Users = dict[str, NDArray[np.float64]]  # figure -> [U], of every user that has it


def lists_of(run: HstuRun) -> Users:
    """AUC and NDCG of the held-out list of every user who has both labels. GAUC is the mean: all lists are of ten."""
    ratings, model = run.ratings, run.best
    samples = held_out_samples(ratings, np.arange(len(ratings)), 0, model.config.max_history)
    scores = scores_of(model, ratings, samples, "evaluate")[:, 0].reshape(-1, HELD_OUT)
    wanted = ratings.labels(events_of(samples))[:, 0].reshape(-1, HELD_OUT)
    both = wanted.any(1) & ~wanted.all(1)
    scores, wanted, one = scores[both], wanted[both], np.zeros(HELD_OUT, np.int64)
    areas = [gauc(one, liked, given)[0] for liked, given in zip(wanted, scores, strict=True)]
    ranked = np.take_along_axis(wanted, np.argsort(-scores, axis=1, kind="stable"), 1)
    gain = 1 / np.log2(np.arange(HELD_OUT) + 2)
    return {GAUC: np.array(areas), LISTS: ranked @ gain / (-np.sort(-wanted.astype(float), axis=1) @ gain)}


def newest_of(run: HstuNextRun) -> Users:
    """Whether the newest item of every user is among the first ten, and its gain."""
    ranks = ranks_of(run.best, run.timed, places_of(run.timed.lengths, "test", 0), "evaluate")
    return {HR: (ranks < 10).astype(float), NDCG: np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)}


def compare(one: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, Any]:
    """A figure of two arms [seeds, users]: means, their ratio, and how sure the difference is."""
    first, second, difference = one.mean(1), other.mean(1), one - other

    def error(values: NDArray[np.float64]) -> float:
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    return {
        "mean": float(first.mean()), "of_other": float(second.mean()),
        "ratio": float(first.mean() / second.mean()), "ratios": (first / second).tolist(),
        "difference": float(difference.mean()), "users": difference.shape[1],
        "error_over_seeds": error(difference.mean(1)), "error_over_users": error(difference.mean(0)),
    }  # fmt: skip


def train_seed(
    ratings: Ratings, timed: Timed, config: HstuConfig, codes: torch.Tensor, seed: int, number: int,
    settings: HstuSettings, next_settings: HstuNextSettings,
) -> tuple[dict[str, Users], float]:  # fmt: skip
    """Arm -> figures of all users, of the arms that this CPU can do; and the share of cold rows."""
    found: dict[str, Users] = {}
    share = math.nan
    for arm in order(possible(), number):
        run = ranker_run(arm, ratings, config, codes, settings, seed)
        learn(run, Limits(settings.epochs, settings.patience), seed)
        found[arm] = lists_of(run)
        share = cold_share(run) if arm == COLD else share
        show(seed, arm, found[arm])
    for arm in order([*NEXTS], number):
        of_next = next_run(arm, timed, codes, next_settings, config, seed)
        limits = Limits(
            next_settings.epochs, next_settings.patience, validate_every=next_settings.validate_every
        )
        learn(of_next, limits, seed)
        found[arm] = newest_of(of_next)
        show(seed, arm, found[arm])
    return found, share


def show(seed: int, arm: str, users: Users) -> None:
    """A line while it goes on."""
    said = ", ".join(f"{name} {values.mean():.4f}" for name, values in users.items())
    print(f"seed {seed}, {arm}: {said}", flush=True)


def summary(
    found: Sequence[Mapping[str, Users]], claims: Mapping[str, tuple[str, str, str]]
) -> dict[str, dict[str, Any]]:
    """Claim -> the comparison, of arms and figures that every seed has. `claims` as COMPARED."""
    return {
        claim: {"what": f"{arm} over {other}: {figure}"} | compare(
            *(np.stack([seed[name][figure] for seed in found]) for name in (arm, other))
        )
        for claim, (arm, other, figure) in claims.items()
        if figure in found[0].get(arm, ())
    }  # fmt: skip


def ratios_of(
    compared: Mapping[str, Mapping[str, Any]], claims: Mapping[str, tuple[str, str, str]]
) -> dict[str, float | None]:
    """Claim -> the ratio of the means, None where not every seed has both."""
    return {claim: compared[claim]["ratio"] if claim in compared else None for claim in claims}


def table_of(compared: Mapping[str, Mapping[str, Any]]) -> str:
    """The same for people."""
    columns = ("mean", "of_other", "ratio", "difference", "error_over_seeds", "error_over_users")
    rows = [(of["what"], *(f"{of[name]:.5f}" for name in columns)) for of in compared.values()]
    return report.columns(("", *columns), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line per training, a table and, last, one JSON object."""
    parser = report.arguments("table_quality", __doc__)
    report.add_artifact(parser)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int, default=0, help="of training; 0: all cores")
    a = parser.parse_args(argv)
    seeds = report.numbers_of(a, "seeds", 0)
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    catalogue = Catalogue.load(a.artifact / CATALOGUE, titles=False)
    ratings, timed = load_ratings(a.artifact, catalogue), load_timed(a.artifact, catalogue)
    config = HstuConfig(len(catalogue), tuple(catalogue.codebook_sizes), ratings.sizes)
    codes = torch.from_numpy(catalogue.codes.astype(np.int64))
    trained = [
        train_seed(ratings, timed, config, codes, seed, number, HstuSettings(), NEXT)
        for number, seed in enumerate(seeds)
    ]
    found, shares = zip(*trained, strict=True)
    compared = summary(found, COMPARED)
    print(table_of(compared))
    figures = {
        arm: {name: [float(seed[arm][name].mean()) for seed in found] for name in users}
        for arm, users in found[0].items()
    }
    skipped = {arm: "this CPU has no avx512_bf16" for arm in RANKERS if arm not in found[0]}
    claims = ratios_of(compared, COMPARED)
    claims |= {"cold_share": float(np.mean(shares))}
    spread = {claim: (min(of["ratios"]), max(of["ratios"])) for claim, of in compared.items()}
    told = {
        "cold_shares": list(shares),
        "arms": figures,
        "compared": [*compared.values()],
        "skipped": skipped,
    }
    run.publish(claims | told, repeats=len(seeds), spread=spread)


if __name__ == "__main__":
    main()
