"""Leave-one-out quality of what is served: the local runtime's own answers, next to two baselines.

genrec bench quality artifacts/ml-100k
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ensembles.local import LocalRecommender
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of, read_current
from genrec.errors import GenrecError, InputError
from genrec.settings import MOST_VALUES
from perf.kit import report
from training.data.histories import Histories
from training.generator.evaluate import PAD, Recommender, evaluate, popularity_baseline, transition_baseline


def served_recommender(local: LocalRecommender) -> Recommender:
    """`recommend(histories, k, remove_seen) -> int64[B, k]` over the engines of an artifact, padded where the catalogue
    has fewer than k items. Raises InputError for a beam width that cannot find k.
    """
    artifact = local.settings.artifact
    served = folder_of(artifact, read_current(artifact).version)
    items, width = len(Catalogue.load(served / CATALOGUE, titles=False)), local.settings.beam_width

    def recommend(histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        asked = min(k, items)
        if width < asked:
            raise InputError(
                "beam_width", f"is {width}", f"{asked} or more: the best {asked} items are measured"
            )
        ranking = np.full((len(histories), k), PAD)
        newest = [history[-MOST_VALUES:] for history in histories]  # as of a user whom a server knows
        for line, answer in zip(ranking, local.recommend(newest, asked, remove_seen), strict=True):
            if isinstance(answer, GenrecError):
                raise answer
            line[: answer["item_ids"].shape[1]] = answer["item_ids"][0]
        return ranking

    return recommend


def measure(
    artifact: Path, beam_width: int, remove_seen: bool, users: int | None = None,
    decoder: str = "beam", verify: str = "every",
) -> dict[str, Any]:  # fmt: skip
    """Figures of the engines and of the baselines over the same users. Raises ArtifactError.

    All answer from the version of the catalogue that is served: a baseline that answers items which the engines may
    not would be compared with nothing. With decoder `draft` also how many candidates stood before verification and
    how many were lost to it.
    """
    version = read_current(artifact).version
    catalogue = Catalogue.load(folder_of(artifact, version) / CATALOGUE)
    histories = Histories.load(artifact / "histories.parquet")
    asked = histories if users is None else histories.sample(users, seed=0)
    with LocalRecommender(artifact, beam_width, decoder=decoder, verify=verify) as local:
        contenders = {
            "popularity": popularity_baseline(catalogue),
            "transition counts": transition_baseline(catalogue, histories),
            "model": served_recommender(local),
        }
        figures = {
            name: evaluate(r, asked, remove_seen=remove_seen, label=name, catalogue=catalogue)
            for name, r in contenders.items()
        }
        candidates, lost = (int(n) for n in local.runtime.drafted)
    drafted = {"verify": verify, "candidates": candidates, "lost": lost} if decoder == "draft" else {}
    return {"artifact": artifact.name, "beam_width": beam_width, "decoder": decoder, **drafted, **figures}


def table(figures: dict[str, Any]) -> str:
    """The same for people."""
    columns = ("HR@5", "NDCG@5", "HR@10", "NDCG@10", "coverage@10", "tail@10", "HR@10 of tail")
    wide = [max(9, len(name) + 2) for name in columns]
    model = figures["model"]
    lines = [
        f"{model['users']} users, last item held out, ranked among the whole catalogue, "
        f"seen items {model['seen_items']}, beam width {figures['beam_width']}",
        "ties: score, then semantic ID (not of baselines), then popularity, then item id",
        "coverage: of the catalogue, in any list; tail: all but the most popular fifth of it",
        f"{'':20}" + "".join(f"{name:>{width}}" for name, width in zip(columns, wide, strict=True)),
    ]
    for name in ("popularity", "transition counts", "model"):
        values = zip((figures[name][column] for column in columns), wide, strict=True)
        lines.append(f"{name:20}" + "".join(f"{value:{width}.4f}" for value, width in values))
    if figures.get("decoder") == "draft":
        share = 1 - figures["lost"] / max(figures["candidates"], 1)
        lines.append(
            f"drafted, verified at {figures['verify']} level: {figures['candidates']} candidates, "
            f"{figures['lost']} lost, {share:.2%} valid before verification"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, last, one JSON object."""
    parser = report.arguments("quality", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-width", type=int, default=128)
    parser.add_argument("--keep-seen", action="store_true", help="seen items may be answered")
    parser.add_argument("--users", type=int, help="a sample instead of all")
    parser.add_argument("--decoder", choices=("beam", "draft"), default="beam")
    a = parser.parse_args(argv)
    run = report.begin(a)
    figures = measure(a.artifact, a.beam_width, not a.keep_seen, a.users, decoder=a.decoder)
    print(table(figures))
    run.publish(figures, repeats=1)


if __name__ == "__main__":
    main()
