"""Leave-one-out quality over the whole catalogue: HR and NDCG of any recommender, and two plain baselines.

Split: the newest item of a history is the test item, the one before it the validation item; what a
recommender is given for the test includes the validation item, what baselines learn from does not
(`Histories.cut(2)`). Tie rule of rankings: score descending, semantic ID ascending, popularity descending,
item id ascending. Items that share a semantic ID share a score, so the more popular is ahead: finding the
semantic ID alone is no hit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from genrec.catalogue.items import Catalogue
from genrec.progress import counting
from training.data.histories import Histories

# histories (B arrays int64, oldest first), K, whether items of the history may not be answered -> int64[B, K]
# item ids best first, padded with PAD
Recommender = Callable[[list[np.ndarray], int, bool], np.ndarray]

PAD = np.iinfo(np.int64).min
KS = (5, 10)
HEAD = 0.2  # of the catalogue, by popularity; the rest is its long tail
SPLITS = {"test": 1, "validation": 2}


def hits(ranking: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rank (from 0) of `target` int64[B] within `ranking` int64[B, K]; K where it is absent: int64[B]."""
    found = ranking == target[:, None]
    return np.where(found.any(axis=1), found.argmax(axis=1), ranking.shape[1])


def metrics(ranks: np.ndarray, ks: tuple[int, ...] = KS) -> dict[str, float]:
    """HR@k and NDCG@k of ranks (from 0) int64[B]; one relevant item, so NDCG is 1 / log2(rank + 2)."""
    gain = 1 / np.log2(ranks + 2)
    return {f"HR@{k}": float((ranks < k).mean()) for k in ks} | {
        f"NDCG@{k}": float(np.where(ranks < k, gain, 0).mean()) for k in ks
    }


def evaluate(
    recommend: Recommender,
    histories: Histories,
    split: str = "test",
    remove_seen: bool = True,
    batch: int = 64,
    label: str = "evaluate",
    catalogue: Catalogue | None = None,
) -> dict[str, object]:
    """Ask `recommend` for every user's held-out item; returns the metrics and what they were measured on. With a
    `catalogue` also how the lists are spread over it.
    """
    lists, target = answers_of(recommend, histories, split, remove_seen, max(KS), batch, label)
    terms = {"split": split, "users": len(target), "seen_items": "removed" if remove_seen else "kept"}
    spreads = spread(lists, target, catalogue) if catalogue else {}
    return {**terms, **metrics(hits(lists, target)), **spreads}


def spread(lists: np.ndarray, target: np.ndarray, catalogue: Catalogue) -> dict[str, float]:
    """How `lists` int64[B, K] are spread over the catalogue: the share of it that is in any list, the share of answers
    that are of the long tail, and HR@K of users whose `target` int64[B] is. NaN: there is nothing to count.

    The long tail is all but the most popular fifth (Abdollahpouri et al. 2019, which calls the second figure APLT).
    """
    order, k = by_popularity(catalogue), lists.shape[1]
    head = order[: math.ceil(HEAD * len(order))]  # an item that came since is none of it
    answered, of_tail = lists[lists != PAD], ~np.isin(target, head)
    return {
        f"coverage@{k}": len(np.intersect1d(answered, order)) / len(order),
        f"tail@{k}": _mean(~np.isin(answered, head)),
        f"HR@{k} of tail": _mean(hits(lists[of_tail], target[of_tail]) < k),
    }


def _mean(found: np.ndarray) -> float:
    return float(found.mean()) if len(found) else math.nan


def answers_of(
    recommend: Recommender,
    histories: Histories,
    split: str,
    remove_seen: bool,
    k: int,
    batch: int,
    label: str,
) -> tuple[np.ndarray, np.ndarray]:
    """The first `k` that every user is answered, int64[U, k], and his held-out item, int64[U].

    The order of users is always the same.
    """
    histories = histories.sample(len(histories), seed=0)  # by length: batches of a model pad little
    given, target = histories.cut(SPLITS[split]).rows(), histories.nth_last(SPLITS[split])
    lists = np.empty((len(target), k), np.int64)
    with counting(label, len(target), "user") as bar:
        for start in range(0, len(target), batch):
            asked = given[start : start + batch]
            lists[start : start + batch] = recommend(asked, k, remove_seen)
            bar.update(len(asked))
    return lists, target


def by_popularity(catalogue: Catalogue) -> np.ndarray:
    """Item ids, popularity descending then id ascending: int64[n]."""
    return catalogue.item_ids[np.lexsort((catalogue.item_ids, -catalogue.popularity))]


def popularity_baseline(catalogue: Catalogue) -> Recommender:
    """Everyone gets the most popular items of the training part."""
    order = by_popularity(catalogue)

    def recommend(histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        return np.stack([best_distinct(order[:0], order, h if remove_seen else h[:0], k) for h in histories])

    return recommend


def transition_baseline(catalogue: Catalogue, histories: Histories) -> Recommender:
    """Items that most often came right after the user's newest one in the training part; then popularity."""
    order = by_popularity(catalogue)
    place = np.empty(len(catalogue), np.int64)
    place[catalogue.rows_of(order)] = np.arange(len(catalogue))
    source, follower, count = transitions(catalogue, histories)
    # Per source item: count descending, then popularity order.
    arranged = np.lexsort((place[follower], -count, source))
    followers = catalogue.item_ids[follower[arranged]]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=len(catalogue)))))

    def recommend(histories: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        rows = catalogue.rows_of(np.array([h[-1] for h in histories]))
        nexts = [followers[offsets[r] : offsets[r + 1]] if r >= 0 else followers[:0] for r in rows]
        seen = [h if remove_seen else h[:0] for h in histories]
        return np.stack([best_distinct(n, order, s, k) for n, s in zip(nexts, seen, strict=True)])

    return recommend


def transitions(catalogue: Catalogue, histories: Histories) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (row, next row) of the training part with their counts: three int64[pairs]. Both are in the catalogue."""
    train = histories.cut(2)
    rows = catalogue.rows_of(train.items).astype(np.int64)
    inside = np.ones(len(rows), bool)
    inside[train.offsets[1:-1]] = False  # the first item of a user follows nobody
    inside[0] = False
    n = len(catalogue)
    before, after = rows[np.flatnonzero(inside) - 1], rows[inside]
    there = (before >= 0) & (after >= 0)
    pairs, count = np.unique(before[there] * n + after[there], return_counts=True)
    return pairs // n, pairs % n, count


def best_distinct(preferred: np.ndarray, others: np.ndarray, excluded: np.ndarray, k: int) -> np.ndarray:
    """The first k distinct of `preferred` and then `others`, none of `excluded`: int64[k], padded with PAD."""
    head = preferred[~np.isin(preferred, excluded)][:k]
    tail = others[: 2 * k + len(excluded)]
    tail = tail[~np.isin(tail, np.concatenate((excluded, head)))][: k - len(head)]
    return np.concatenate((head, tail, np.full(k - len(head) - len(tail), PAD)))
