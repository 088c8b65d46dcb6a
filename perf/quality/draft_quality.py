"""Tables 3 and 4 of NEZHA on an artifact: beam search, parallel heads, the draft head and its ablations.

    genrec bench draft_quality artifacts/ml-1m [--seeds 0,1,2] [--rows draft,parallel] [--epochs 2] [--users 2000]

Draft heads are trained anew per seed on the artifact's generator, which stays frozen, so beam search is one figure.
`last` and `unverified` ask the head of `draft` otherwise: in mode `last`, and without its verification, where what is
no item keeps its place in the list. Both are slow: all tuples of codes are in question.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.errors import InputError
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import load_draft
from perf.kit import report
from training.data import Histories
from training.draft import DraftSettings, draft_recommender, train_draft
from training.evaluate import evaluate
from training.recommend import model_recommender

# What a row trains, and how the head is then asked.
ROWS = {
    "draft": (DraftConfig(), "every"),
    "parallel": (DraftConfig("none", False), "every"),  # the paper's MTP
    "no state": (DraftConfig("none", True), "every"),  # NEZHA-1
    "no placeholders": (DraftConfig("gru", False), "every"),  # NEZHA-2
    "addition": (DraftConfig("add", True), "every"),  # NEZHA-3
    "last": (DraftConfig(), "last"),  # as the paper verifies
    "unverified": (DraftConfig(), "unverified"),
}
METRICS = ("HR@5", "HR@10", "NDCG@5", "NDCG@10")


def measure(
    artifact: Path, seeds: list[int], rows: list[str], settings: DraftSettings, users: int | None, width: int,
    threads: int,
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
                generator.config.save(Path(folder) / "config.json")
                train_draft(
                    histories,
                    catalogue,
                    generator,
                    settings,
                    options,
                    Path(folder),
                    seed=seed,
                    threads=threads,
                )
                head = load_draft(Path(folder))
            for row in rows:
                if ROWS[row][0] == options:
                    ask = draft_recommender(generator, head, catalogue, width, ROWS[row][1])
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
    run = report.begin(a)
    if a.threads:
        torch.set_num_threads(a.threads)
    seeds = [int(seed) for seed in a.seeds.split(",")]
    chosen = DraftSettings(epochs=a.epochs)
    found = measure(a.artifact, seeds, rows, chosen, a.users, a.beam_width, a.threads)
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
