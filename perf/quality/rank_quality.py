"""Is a ranked list better than the generator's own, and does it matter which tokens come first (BAT, Table 3)?

    genrec bench rank_quality artifacts/ml-1m [--seeds 0,1,2] [--rows split,both,next] [--recipe next.json]
    genrec bench rank_quality artifacts/ml-1m --rows split,reach --reach 12
    genrec bench rank_quality artifacts/ml-1m --rows split,layers --layers 2

Every ranker is trained anew per seed on the artifact's generator. Candidates are the generator's 100 best unseen items
of every user; the item left out is a hit only if it is among them. Each row is read in the orders it was trained for:
`split`, `user` and `item` in one, `both` in the paper's two; `own` is `split` with layers that learn throughout; in
`reach` scores read the newest --reach tokens of a user alone, in `layers` they have the generator's last --layers ones.
`next` is HSTU for the next item, trained by --recipe.
What the generator's log-probability counts in a ranked list is chosen on validation items.
`ranked_over_generator_ndcg10` is of `next` where it was run, else of `split`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.nn.ranker import Ranker
from genrec.nn.ranker_checkpoint import load_ranker
from perf.kit import report
from training.hstu_next.measure import ALONE, TOGETHER, ranked
from training.hstu_next.settings import HstuNextSettings
from training.hstu_next.timed import load_timed
from training.hstu_next.train import fresh_model, train_hstu_next
from training.ranker.candidates import Candidates
from training.ranker.evaluate import Places, figures, gains, scores_of, together
from training.ranker.train import RankerSettings, fresh_ranker, open_places, train_ranker
from training.recipe_file import HSTU_NEXT, changed, read_recipe
from training.sharded.world import World

# What a row is trained for, and whether it leaves the generator as it is.
ROWS = {
    "split": ("split", True), "own": ("split", False), "both": ("both", True), "user": ("user", True),
    "item": ("item", True), "reach": ("split", True), "layers": ("split", True),
}  # fmt: skip
# Rows of which `--NAME N` says how much their scores read.
LESS = ("reach", "layers")
NEXT = "next"
METRICS = ("NDCG@10", "MRR@10", "Recall@10")


def read(ranker: Ranker, places: Places, test: Candidates) -> dict[str, dict[str, Any]]:
    """Order -> figures of the ranker alone and of `both together`, and how sure the difference to the generator is."""
    found: dict[str, dict[str, Any]] = {}
    for order in ranker.options.orders:
        scores = scores_of(ranker, places, test, order)
        ranked = together(test, scores, ranker.options.generator_weight)
        gain = gains(test, ranked) - gains(test, test.scores)
        found[order] = {
            "alone": figures(test, scores),
            "with generator": figures(test, ranked),
            "gain": {"NDCG@10": float(gain.mean()), "standard_error": float(gain.std() / len(gain) ** 0.5)},
        }
    return found


def measure_ranker(artifact: Path, device: str = "cpu") -> dict[str, Any]:
    """Figures of the ranker in `artifact`/model over all users, computed on `device`. Raises ArtifactError."""
    ranker = load_ranker(artifact / "model").to(device)
    places, candidates = open_places(artifact, 0, ranker.options.history, device)
    test = candidates["test"]
    return {
        "artifact": artifact.name, "users": len(test), "shared": ranker.shared, "trained_for": ranker.options.order,
        "generator_weight": ranker.options.generator_weight, "generator": figures(test, test.scores),
        "orders": read(ranker, places, test),
    }  # fmt: skip


def ranker_table(found: dict[str, Any]) -> str:
    """The same for people."""
    rows = [("the generator's order", *cells(found["generator"]))]
    for order, of in found["orders"].items():
        rows += [(f"ranker, order {order}", *cells(of["alone"]))]
        rows += [(f"both together, order {order}", *cells(of["with generator"]))]
    about = f"{found['users']} users, last item held out, the generator's 100 best unseen items of the whole catalogue"
    return f"{about}\n{report.columns(('', *METRICS), rows)}"


def cells(of: dict[str, float]) -> list[str]:
    """Figures as text."""
    return [f"{of[name]:.4f}" for name in METRICS]


def train_rows(
    artifact: Path, rows: Sequence[str], seeds: Sequence[int], settings: RankerSettings, minutes: float | None
) -> dict[str, Any]:
    """The generator's figures, and per row those of every seed. Raises ArtifactError."""
    places, candidates = open_places(artifact, settings.places)
    test = candidates["test"]
    found: dict[str, Any] = {"users": len(test), "generator": figures(test, test.scores)}
    for row in rows:
        order, shared = ROWS[row]
        found[row] = []
        for seed in seeds:
            less = {name: getattr(settings, name) for name in LESS if name == row}
            tokens = places.tokens.shape[1]
            fresh = fresh_ranker(artifact, order, shared, settings.dropout, tokens, seed, **less)
            with TemporaryDirectory() as state:
                kept, log = train_ranker(
                    World(), fresh, places, candidates, settings, Path(state), seed, minutes
                )
            found[row].append({**log, "orders": read(kept, places, test)})
            print(f"{artifact.name}, {row}, seed {seed}", flush=True)
            print(ranker_table(found | {"orders": found[row][-1]["orders"]}), flush=True)
    return found


def train_next(artifact: Path, seeds: Sequence[int], settings: HstuNextSettings) -> list[dict[str, Any]]:
    """Per seed: what HSTU for the next item makes of the generator's candidates. Raises InputError, ArtifactError."""
    catalogue = Catalogue.load(artifact / CATALOGUE, titles=False)
    timed, (_, candidates) = load_timed(artifact, catalogue), open_places(artifact)
    found = []
    for seed in seeds:
        fresh = fresh_model(catalogue, settings, seed)
        with TemporaryDirectory() as state:
            best, log = train_hstu_next(World(), timed, fresh, settings, Path(state), seed)
        of = ranked(best, timed, candidates)
        print(f"{artifact.name}, {NEXT}, seed {seed}: {of}", flush=True)
        found.append({**log, "alone": of[ALONE], "with generator": of[TOGETHER]})
    return found


def of_order(trained: dict[str, Any], order: str) -> dict[str, Any]:
    """Figures of one training; HSTU knows no orders."""
    return trained.get("orders", {}).get(order, trained)


def mean(found: dict[str, Any], row: str, order: str, what: str) -> float | None:
    """NDCG@10 over the seeds, where it was measured."""
    values = [of_order(seed, order)[what]["NDCG@10"] for seed in found.get(row, ())]
    return float(np.mean(values)) if values else None


def ratio(above: float | None, below: float | None) -> float | None:
    """Where both were measured."""
    return above / below if above is not None and below else None


def ratios(found: dict[str, Any]) -> dict[str, float | None]:
    """What is claimed of one artifact: NDCG@10 of rankers alone, but of `ranked` with the generator's part."""
    both = {order: mean(found, "both", order, "alone") for order in ("user", "item")}
    alone = mean(found, "user", "user", "alone")
    user = both["user"] if alone is None else alone
    split = mean(found, "split", "split", "alone")
    by_row = {
        row: ratio(mean(found, row, order, "with generator"), found["generator"]["NDCG@10"])
        for row, order in (("split", "split"), (NEXT, NEXT))
        if row in found
    }
    return {
        "item_over_user_ndcg10": ratio(both["item"], both["user"]),
        "split_over_user_ndcg10": ratio(split, user),
        "ranked_over_generator_ndcg10": by_row.get(NEXT if NEXT in found else "split"),
        "ranked_over_generator_by_row": by_row,
        "shared_over_own_ndcg10": ratio(split, mean(found, "own", "split", "alone")),
        **{f"{row}_over_split_ndcg10": over_split(found, row, "alone") for row in LESS},
        **{f"{row}_over_split_together_ndcg10": over_split(found, row, "with generator") for row in LESS},
    }


def over_split(found: dict[str, Any], row: str, what: str) -> float | None:
    """NDCG@10 of a row that reads less, over that of `split`."""
    return ratio(mean(found, row, "split", what), mean(found, "split", "split", what))


def spread(found: dict[str, Any], rows: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Least and most NDCG@10 over the seeds, of every artifact, row and order."""
    return {
        f"{name}, {row}, {order}, {what}": (min(values), max(values))
        for name, of in found.items()
        for row in rows
        for order in of[row][0].get("orders", (row,))
        for what in ("alone", "with generator")
        for values in [[of_order(seed, order)[what]["NDCG@10"] for seed in of[row]]]
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per ranker and, last, one JSON object."""
    parser = report.arguments("rank_quality", __doc__)
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", default=",".join(row for row in ROWS if row not in LESS))
    parser.add_argument("--reach", type=int, default=0, help="tokens, of row `reach`")
    parser.add_argument("--layers", type=int, default=0, help="of row `layers`")
    parser.add_argument("--epochs", type=int, default=RankerSettings.epochs)
    parser.add_argument("--minutes", type=float, help="of each training, at most")
    parser.add_argument("--recipe", default=HSTU_NEXT, help="of `next`, as `genrec train --recipe` takes it")
    parser.add_argument("--threads", type=int, default=0, help="of training; 0: all cores")
    a = parser.parse_args(argv)
    rows, seeds = a.rows.split(","), report.numbers_of(a, "seeds", 0)
    if unknown := [row for row in rows if row not in (*ROWS, NEXT)]:
        raise InputError("rows", f"names {unknown}", ", ".join((*ROWS, NEXT)))
    model, said = read_recipe(a.recipe)
    if model != HSTU_NEXT:
        raise InputError("recipe", f"is for {model}", HSTU_NEXT)
    of_next = changed(HstuNextSettings(), said)
    for name in LESS:
        if (name in rows) == (not getattr(a, name)):
            problem = f"is {getattr(a, name)} with rows {a.rows}"
            raise InputError(name, problem, f"above 0 with row {name}, and only then")
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    settings = replace(RankerSettings(), epochs=a.epochs, reach=a.reach, layers=a.layers)
    over = [row for row in rows if row != NEXT]
    found = {each.name: train_rows(each, over, seeds, settings, a.minutes) for each in a.artifacts}
    if NEXT in rows:
        for each in a.artifacts:
            found[each.name][NEXT] = train_next(each, seeds, of_next)
    claims = {name: ratios(of) for name, of in found.items()}
    by_claim = {
        claim: {name: of[claim] for name, of in claims.items()} for claim in next(iter(claims.values()))
    }
    run.publish({**by_claim, "rankers": found}, repeats=len(seeds), spread=spread(found, rows))


if __name__ == "__main__":
    main()
