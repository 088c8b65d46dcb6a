"""How good an HSTU model of the next item is: leave-one-out over the whole catalogue, and over candidates.

Items of a user's whole history are taken out, as `genrec evaluate` does; who takes one of them again is a miss. An item
whose score equals the wanted one's is taken to be before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.nn.device import device_of
from genrec.nn.hstu_checkpoint import load_hstu_next
from genrec.nn.hstu_next import HstuNext
from genrec.progress import counting
from training.generator.evaluate import metrics
from training.hstu_next.batches import events_of, spans_before
from training.hstu_next.timed import Timed, load_timed
from training.ranker.candidates import Candidates, load_candidates, places_of
from training.ranker.evaluate import choose_weight, figures, together

BATCH = 128
KS = (10,)
# What is measured.
WHOLE, GENERATOR = "whole catalogue", "generator's candidates, its order"
ALONE, TOGETHER = "the same, by HSTU", "the same, both together"
FEW = f"users with at most {KS[0]} unseen items"


@torch.no_grad()
def scores_of(
    model: HstuNext, timed: Timed, places: np.ndarray, label: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of places int64[m, 2] (user, cut) in their order: some of them, and scores float32[b, I] of all items there."""
    device = device_of(model)
    with counting(label, len(places), "user") as bar:
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            spans = spans_before(timed, part, model.config.max_history)
            yield part, model.scores(events_of(timed, spans).to(device)).cpu().numpy()
            bar.update(len(part))


def ranks_of(model: HstuNext, timed: Timed, places: np.ndarray, label: str) -> np.ndarray:
    """Place (from 0) of the item behind each of `places` int64[m, 2] (user, cut) in the whole catalogue: int64[m].

    One that was taken out, or has no number as a score, is behind all items and all places that count.
    """
    found, last = [np.zeros(0, np.int64)], max(model.config.items, *KS)
    for part, scores in scores_of(model, timed, places, label):
        first = timed.offsets[part[:, 0]]
        for line, start, cut in zip(scores, first.tolist(), part[:, 1].tolist(), strict=True):
            line[timed.rows[start : start + cut]] = -np.inf
        own = np.take_along_axis(scores, timed.rows[first + part[:, 1]][:, None], 1)
        found.append(np.where(own[:, 0] > -np.inf, (~(scores < own)).sum(1) - 1, last))
    return np.concatenate(found)


def candidate_scores(model: HstuNext, timed: Timed, at: Candidates, label: str) -> np.ndarray:
    """Scores float32[m, 100] of candidates, -inf where there are none."""
    places, rows = np.stack((at.user, at.cut), 1).astype(np.int64), np.maximum(at.rows, 0).astype(np.int64)
    found, first = np.empty(at.rows.shape, np.float32), 0
    for part, scores in scores_of(model, timed, places, label):
        span = slice(first, first + len(part))
        found[span] = np.take_along_axis(scores, rows[span], 1)
        first += len(part)
    found[at.rows < 0] = -np.inf
    return found


def with_few(timed: Timed, places: np.ndarray, items: int) -> int:
    """How many of `places` int64[m, 2] (user, cut) have so few unseen items that any order of them is a hit."""
    few = places[items - places[:, 1] <= KS[0]]
    starts = timed.offsets[few[:, 0]]
    seen = (timed.rows[start : start + cut] for start, cut in zip(starts, few[:, 1], strict=True))
    return sum(items - len(np.unique(rows)) <= KS[0] for rows in seen)


def measure_hstu_next(artifact: Path, device: str = "cpu") -> dict[str, Any]:
    """Figures of all users' newest items; of the generator's candidates too, where there is a generator. Models compute
    on `device`.

    Raises InputError, ArtifactError.
    """
    model = load_hstu_next(artifact / "model").to(device)
    timed = load_timed(artifact, Catalogue.load(artifact / CATALOGUE, titles=False))
    places = places_of(timed.lengths, "test", 0)
    whole = metrics(ranks_of(model, timed, places, "evaluate"), KS)
    found: dict[str, Any] = {"users": len(places), WHOLE: whole}
    if few := with_few(timed, places, model.config.items):
        found[FEW] = few
    if (artifact / "model" / "config.json").is_file():
        found |= ranked(model, timed, load_candidates(artifact, 0, device))
    return found


def ranked(model: HstuNext, timed: Timed, candidates: dict[str, Candidates]) -> dict[str, Any]:
    """Figures of the generator's order of its candidates, of the model's, and of both together."""
    checked, test = (candidates[split] for split in ("validation", "test"))
    weight, _ = choose_weight(checked, {"": candidate_scores(model, timed, checked, "validation candidates")})
    scores = candidate_scores(model, timed, test, "candidates")
    orders = {GENERATOR: test.scores, ALONE: scores, TOGETHER: together(test, scores, weight)}
    of = {name: figures(test, each) for name, each in orders.items()}
    return {
        "generator_weight": weight,
        **{name: {"HR@10": each["Recall@10"], "NDCG@10": each["NDCG@10"]} for name, each in of.items()},
    }


def hstu_next_table(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        f"{found['users']} users, last item held out, seen items removed",
        f"{'':36}{'HR@10':>8}{'NDCG@10':>9}",
    ]
    for name, each in found.items():
        if isinstance(each, dict):
            lines.append(f"{name:36}{each['HR@10']:8.4f}{each['NDCG@10']:9.4f}")
    if FEW in found:
        lines.append(
            f"{found[FEW]} {FEW}: one of these is a hit in any order, so NDCG@10 alone tells orders apart"
        )
    if "generator_weight" in found:
        lines.append(f"of both: HSTU's score + {found['generator_weight']} x the generator's log-probability")
    return "\n".join(lines)
