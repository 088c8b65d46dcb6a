"""How good an order of candidates is: leave-one-out over all users, a target that is not among them is a miss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genrec.nn.device import device_of
from genrec.nn.ranker import Ranker
from genrec.progress import counting
from training.ranker.candidates import CANDIDATES, Candidates, prompts

# What the generator's log-probability may count beside a ranker's scores.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
BATCH = 64


@dataclass(frozen=True, eq=False)
class Asked:
    """A batch as a ranker takes it: user tokens [B, S] padded right, lengths [B], rows, tokens and codes of candidates.

    `rows` [B, C] of the catalogue, `tokens` [B, C, t], `codes` [B, C, L] as tokens.
    """

    user: Tensor
    length: Tensor
    rows: Tensor
    tokens: Tensor
    codes: Tensor

    def scores(self, ranker: Ranker, order: str, entries: Tensor | None = None) -> Tensor:
        """float [B, C], where the ranker is; in split order `entries` of all items may be at hand."""
        device = device_of(ranker)
        user, length, rows, tokens, codes = (each.to(device) for each in vars(self).values())
        if entries is None or order != "split":
            return ranker(user, length, tokens, codes, order)
        entry = ranker.prefix(user)
        states = ranker.states(entry, length, entries, rows, order)
        return ranker.scores(states, codes)


@dataclass(frozen=True, eq=False)
class Places:
    """Histories and items as a ranker reads them.

    `rows` int64 per user of the catalogue; by catalogue row `codes` int[n, L], `tokens` int[n, t] of a candidate and
    `history` int[n, t or L] of an item of a history, of which `most` are read.
    """

    rows: list[np.ndarray]
    codes: np.ndarray
    tokens: np.ndarray
    history: np.ndarray
    most: int

    def ask(self, at: Candidates, rows: np.ndarray) -> Asked:
        """Candidates `rows` int[B, C] at places; a row of -1 reads as the first item, and its score means nothing."""
        user, length = prompts(self.rows, np.stack((at.user, at.cut), 1), self.history, self.most)
        known = np.maximum(rows, 0).astype(np.int64)
        tokens, codes = (torch.from_numpy(each[known].astype(np.int64)) for each in (self.tokens, self.codes))
        return Asked(user, length, torch.from_numpy(known), tokens, codes)

    @torch.no_grad()
    def entries(self, ranker: Ranker) -> Tensor:
        """KV of all items, at the positions from 0 on."""
        return ranker.items(torch.from_numpy(self.tokens.astype(np.int64)).to(device_of(ranker)))


@torch.no_grad()
def scores_of(ranker: Ranker, places: Places, at: Candidates, order: str) -> np.ndarray:
    """A ranker's scores of candidates float32[m, 100], -inf where there are none.

    Where the target is not among them no score changes a figure: 0.
    """
    entries = places.entries(ranker) if order == "split" else None
    scores = np.zeros(at.rows.shape, np.float32)
    asked = np.flatnonzero(found(at))
    with counting(f"score, {order}", len(asked), "place") as bar:
        for start in range(0, len(asked), BATCH):
            span = asked[start : start + BATCH]
            part = at.at(span)
            scores[span] = places.ask(part, part.rows).scores(ranker, order, entries).cpu().numpy()
            bar.update(len(span))
    scores[at.rows < 0] = -np.inf
    return scores


def found(at: Candidates) -> np.ndarray:
    """Whose target is among the candidates: bool[m]."""
    return (at.rows == at.target[:, None]).any(1)


def ranks(at: Candidates, scores: np.ndarray) -> np.ndarray:
    """Place (from 0) of every target among its candidates: int64[m]; CANDIDATES where it is not among them.

    Ties stay in the generator's order.
    """
    wanted = at.rows == at.target[:, None]
    order = np.argsort(-scores, 1, kind="stable")
    place = np.take_along_axis(wanted, order, 1).argmax(1)
    return np.where(wanted.any(1), place, CANDIDATES)


def gains(at: Candidates, scores: np.ndarray) -> np.ndarray:
    """NDCG@10 of every place: float64[m]."""
    place = ranks(at, scores)
    return np.where(place < 10, 1 / np.log2(place + 2), 0)


def figures(at: Candidates, scores: np.ndarray) -> dict[str, float]:
    """NDCG@10, MRR@10, Recall@10 over all places, and over those whose target is a candidate (BAT, Table 3)."""
    place = ranks(at, scores)
    hit, known = place < 10, found(at)
    each = {
        "NDCG@10": np.where(hit, 1 / np.log2(place + 2), 0), "MRR@10": np.where(hit, 1 / (place + 1), 0),
        "Recall@10": hit.astype(float),
    }  # fmt: skip
    of_found = {
        f"{name} of found": float(of[known].mean()) if known.any() else 0.0 for name, of in each.items()
    }
    return {name: float(of.mean()) for name, of in each.items()} | of_found


def together(at: Candidates, scores: np.ndarray, weight: float) -> np.ndarray:
    """A ranker's scores and the generator's log-probabilities as one score."""
    return scores + weight * np.where(at.rows >= 0, at.scores, 0)


def choose_weight(at: Candidates, scored: dict[str, np.ndarray]) -> tuple[float, dict[str, float]]:
    """The weight of best NDCG@10, on average over the orders in `scored`, and the figures of both together there."""

    def value(weight: float) -> float:
        return float(np.mean([gains(at, together(at, scores, weight)).mean() for scores in scored.values()]))

    weight = max(WEIGHTS, key=value)
    each = [figures(at, together(at, scores, weight)) for scores in scored.values()]
    return weight, {name: float(np.mean([of[name] for of in each])) for name in each[0]}
