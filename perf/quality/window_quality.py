"""What does it cost that a named user's window moves in steps (genrec/models/prompt.py)?

    genrec bench window_quality artifacts/ml-100k artifacts/ml-1m

Asks the generator for the newest item of every user whose history is longer than it reads, by windows that move with
every item (`newest`) and by a half, a quarter, an eighth of `max_history`. All windows are of the same users, so the
difference to `newest` is taken user by user; `error` is its standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.errors import InputError
from genrec.models.prompt import Start, newest_start, window_start
from genrec.nn.checkpoint import load_generator
from perf.kit import report
from training.data.histories import Histories
from training.generator.evaluate import SPLITS, Recommender, answers_of, hits
from training.generator.recommend import model_recommender
from training.stages import load_histories

WINDOWS: dict[str, Start] = {"newest": newest_start} | {
    f"steps of 1/{steps}": partial(window_start, steps=steps) for steps in (2, 4, 8)
}
TOP_K, BATCH = 10, 64
HEAD = ("HR@10", "NDCG@10", "difference", "error")


def longer_than(histories: Histories, items: int) -> Histories:
    """Of users whose history is longer than that without its newest item."""
    return histories.of(np.flatnonzero(histories.lengths - SPLITS["test"] > items))


def measure(artifact: Path, beam_width: int) -> dict[str, Any]:
    """Figures by window, of so many users. Raises InputError, ArtifactError."""
    catalogue, model = Catalogue.load(artifact / CATALOGUE), load_generator(artifact / "model")
    users = longer_than(load_histories(artifact), model.config.max_history)
    if not len(users):
        raise InputError(
            "artifacts", f"has {artifact}, which reads every history whole", "one that cuts some"
        )
    gains: dict[str, Any] = {}
    windows: dict[str, dict[str, float]] = {}
    for name, start in WINDOWS.items():
        recommend: Recommender = model_recommender(model, catalogue, beam_width, start=start)
        ranks = hits(*answers_of(recommend, users, "test", True, TOP_K, BATCH, f"{artifact.name}, {name}"))
        gains[name] = np.where(ranks < TOP_K, 1 / np.log2(ranks + 2), 0)
        apart = gains[name] - gains["newest"]
        windows[name] = {
            "HR@10": float((ranks < TOP_K).mean()), "NDCG@10": float(gains[name].mean()),
            "difference": float(apart.mean()), "error": float(apart.std() / len(apart) ** 0.5),
        }  # fmt: skip
    print(f"{artifact.name}: {len(users)} users of more than {model.config.max_history} items")
    print(
        report.columns(
            ("", *HEAD), [(name, *(f"{windows[name][key]:.4f}" for key in HEAD)) for name in windows]
        )
    )
    return {f"{artifact.name}, {name}": {"users": len(users), **figures} for name, figures in windows.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per artifact and, last, one JSON object."""
    parser = report.arguments("window_quality", __doc__)
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--beam-width", type=int, default=128)
    a = parser.parse_args(argv)
    run = report.begin(a)
    found: dict[str, Any] = {}
    for each in a.artifacts:
        found |= measure(each, a.beam_width)
    run.publish({"windows": found}, repeats=1)


if __name__ == "__main__":
    main()
