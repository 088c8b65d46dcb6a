"""That "the same weights" is true: our scores recomputed from a peer's logits, and peers' answers compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from perf.peers.folder import PeerModel
from perf.peers.ours import Ours
from perf.peers.peer import Deadline, Peer
from perf.peers.system import Prompts

Logits = Callable[[Sequence[int]], NDArray[np.float64]]  # tokens [S] -> float64[V] of the next token
SCORED = 3  # items
LIMIT_S = 60.0


def score(model: PeerModel, prompt: Sequence[int], row: int, logits: Logits) -> float:
    """Log-probability of an item under the constrained model by a peer's logits: the slow way, level by level."""
    tokens, total = list(prompt), 0.0
    siblings = model.tokens
    for level, token in enumerate(model.tokens[row].tolist()):
        valid = np.unique(siblings[:, level])
        found = logits(tokens)[valid]
        top = found.max()
        total += found[valid == token].item() - top - np.log(np.exp(found - top).sum())
        siblings = siblings[siblings[:, level] == token]
        tokens.append(token)
    return total


def score_difference(ours: Ours, teller: Peer, asked: Prompts, width: int) -> float:
    """Largest difference between scores that we answer and the same from `teller`'s logits. Raises Refusal."""
    ours.start(width)
    teller.start(width)
    rows, scores = ours.scored(asked.rows[0], SCORED)

    def logits(tokens: Sequence[int]) -> NDArray[np.float64]:
        return np.array(teller.ask(Deadline(LIMIT_S), do="logits", tokens=list(tokens))[0])

    exact = [score(asked.model, asked.tokens[0].tolist(), int(row), logits) for row in rows]
    return float(np.abs(np.array(exact) - scores).max())


def agreement(teller: Peer, others: Iterable[Peer], asked: Prompts, width: int) -> dict[str, float]:
    """The share of `teller`'s answers that each other unconstrained peer answers too. Raises Refusal."""

    def answered(peer: Peer) -> set[tuple[int, ...]]:
        peer.start(width)
        prompts = asked.tokens[:1].tolist()
        found, _ = peer.ask(Deadline(LIMIT_S), do="generate", prompts=prompts, width=width)
        return {tuple(beam) for beam in found[0]}

    wanted = answered(teller)
    return {peer.name: len(wanted & answered(peer)) / len(wanted) for peer in others}
