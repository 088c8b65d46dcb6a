"""Tables 3 and 4 of NEZHA on an artifact: beam search, parallel heads, the draft head and its ablations.

    genrec bench draft_quality artifacts/ml-1m [--seeds 0,1,2] [--rows draft,parallel] [--epochs 2] [--users 2000]

Draft heads are trained anew per seed on the artifact's generator, which stays frozen, so beam search is one figure.
`last` and `unverified` ask the head of `draft` otherwise: in mode `last`, and without its verification, where what is
no item keeps its place in the list. Both are slow: all tuples of codes are in question.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import Catalogue
from genrec.draft.head import Drafter
from genrec.draft.options import DraftConfig
from genrec.draft.search import draft
from genrec.errors import InputError
from genrec.nn.checkpoint import load_generator
from perf.kit import report
from training.data.histories import Histories
from training.generator.draft import DraftRecommender, DraftSettings, train_draft
from training.generator.evaluate import PAD, evaluate
from training.generator.recommend import model_recommender
from training.sharded.world import World


class Anything(SemanticIdSet):
    """A set that holds every semantic ID: verification that never says no."""

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.int64), np.zeros(1, np.int32))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """All of them."""
        return np.zeros(np.shape(keys), np.int32)


class Unverified(DraftRecommender):
    """Mode `last` without its verification (Table 4): what is no item leaves a gap (PAD)."""

    def answer(self, drafter: Drafter, states: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """The k best tuples of codes as item ids; a tuple of several items is the most popular one's."""
        index, item_ids = self.index, self.catalogue.item_ids
        found = draft("last", drafter, states, index, Anything(), self.beam_width)
        leaves = self.valid.find(found.semantic_ids[np.lexsort((found.semantic_ids, -found.scores))])
        items = item_ids[index.rows[index.first_child[-1][np.maximum(leaves, 0)]]]
        ids = np.where(leaves >= 0, items, PAD)
        return ids[~np.isin(ids, item_ids[excluded])][:k]


# What a row trains, and how the head is then asked.
ROWS: dict[str, tuple[DraftConfig, Callable[..., DraftRecommender]]] = {
    "draft": (DraftConfig(), DraftRecommender),
    "parallel": (DraftConfig("none", False), DraftRecommender),  # the paper's MTP
    "no state": (DraftConfig("none", True), DraftRecommender),  # NEZHA-1
    "no placeholders": (DraftConfig("gru", False), DraftRecommender),  # NEZHA-2
    "addition": (DraftConfig("add", True), DraftRecommender),  # NEZHA-3
    "last": (DraftConfig(), partial(DraftRecommender, mode="last")),  # as the paper verifies
    "unverified": (DraftConfig(), Unverified),
}
METRICS = ("HR@5", "HR@10", "NDCG@5", "NDCG@10")


def measure(
    artifact: Path, seeds: list[int], rows: list[str], settings: DraftSettings, users: int | None, width: int
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Row -> figures per seed. Raises ArtifactError."""
    histories, catalogue = (
        Histories.load(artifact / "histories.parquet"),
        Catalogue.load(artifact / "catalogue.parquet"),
    )
    asked = histories if users is None else histories.sample(users, seed=0)
    generator = load_generator(artifact / "model")
    beam = evaluate(model_recommender(generator, catalogue, width), asked, label="beam search")
    found: dict[str, list[dict[str, Any]]] = {"beam search": [beam]}
    for options in dict.fromkeys(ROWS[row][0] for row in rows):
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                _, head, _ = train_draft(
                    World(), histories, catalogue, generator, settings, options, Path(folder), seed=seed
                )
            for row in rows:
                if ROWS[row][0] == options:
                    ask = ROWS[row][1](generator, head, catalogue, width)
                    found.setdefault(row, []).append(evaluate(ask, asked, label=f"{row}, seed {seed}"))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print mean and spread per row and, last, one JSON object."""
    parser = report.arguments("draft_quality", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument(
        "--epochs", type=int, default=DraftSettings.epochs, help="of each training; 0: as `genrec train` does"
    )
    parser.add_argument("--users", type=int, help="a sample of test users instead of all")
    parser.add_argument("--beam-width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0, help="of training; 0: all cores")
    a = parser.parse_args(argv)
    rows = a.rows.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        raise InputError("rows", f"names {unknown}", ", ".join(ROWS))
    seeds = report.numbers_of(a, "seeds", 0)
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    chosen = DraftSettings(epochs=a.epochs)
    found = measure(a.artifact, seeds, rows, chosen, a.users, a.beam_width)
    users = found["beam search"][0]["users"]
    print(
        f"{a.artifact.name}: {users} test users, beam width {a.beam_width}, seeds {a.seeds}; mean, lowest to highest"
    )
    cells, spread = [], {}
    for name, runs in found.items():
        values = {m: np.array([each[m] for each in runs]) for m in METRICS}
        spread |= {f"{name}, {m}": (v.min(), v.max()) for m, v in values.items()}
        cells.append((name, *(f"{v.mean():.4f} ({v.min():.4f} to {v.max():.4f})" for v in values.values())))
    print(report.columns(("", *METRICS), cells))
    run.publish({"rows": found}, repeats=len(seeds), spread=spread)


if __name__ == "__main__":
    main()
