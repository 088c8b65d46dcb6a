"""The slow, obvious draft: every item on its own, formulas as in the paper and PyTorch's GRU page, float64."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import torch

from genrec.nn.draft_head import DraftHead
from genrec.nn.model import Generator


@torch.no_grad()
def plain_states(generator: Generator, head: DraftHead, tokens: list[int]) -> np.ndarray:
    """h_0 .. h_L of one prompt, by the generator's own full pass over a vocabulary with placeholders at its end."""
    wide, extra = copy.deepcopy(generator).double(), []
    if head.options.placeholders:
        table = torch.cat((generator.embed_tokens.weight, head.placeholders)).double()
        wide.embed_tokens = torch.nn.Embedding.from_pretrained(table)
        extra = [generator.config.vocab_size + level for level in range(generator.config.levels)]
    hidden, _ = wide.prefill(torch.tensor([[*tokens, *extra]]))
    return hidden[0, len(tokens) - 1 :].numpy()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def plain_logits(
    generator: Generator, head: DraftHead, states: np.ndarray, codes: tuple[int, ...]
) -> np.ndarray:
    """Logits of the level after `codes`: equations 1 to 3, one code at a time."""
    w = {name: tensor.detach().double().numpy() for name, tensor in head.state_dict().items()}
    embed = generator.embed_tokens.weight.detach().double().numpy()
    size, s = states.shape[1], states[0]
    for level, code in enumerate(codes):
        e = embed[generator.config.code_offsets[level] + code]
        if head.options.transition == "add":
            s = s + e
        if head.options.transition == "gru":
            fed = w[f"transitions.{level}.weight_ih"] @ e + w[f"transitions.{level}.bias_ih"]
            own = w[f"transitions.{level}.weight_hh"] @ s + w[f"transitions.{level}.bias_hh"]
            reset, update = (
                sigmoid(fed[:size] + own[:size]),
                sigmoid(fed[size : 2 * size] + own[size : 2 * size]),
            )
            new = np.tanh(fed[2 * size :] + reset * own[2 * size :])
            s = (1 - update) * new + update * s
    n, out = len(codes), 0.0
    if f"hidden_heads.{n}.weight" in w:
        h = states[n + 1 if head.options.placeholders else 0]
        out = w[f"hidden_heads.{n}.weight"] @ h + w[f"hidden_heads.{n}.bias"]
    if f"state_heads.{n}.weight" in w:
        out = out + w[f"state_heads.{n}.weight"] @ s
    return out


def score_tuples(generator, head, states, valid=None) -> dict[tuple[int, ...], float]:
    """Log-probability of every tuple of codes; with `valid` of those alone, renormalised over them per level."""
    sizes = generator.config.codebook_sizes
    tuples = sorted(valid) if valid is not None else list(product(*(range(t) for t in sizes)))
    scores = {(): 0.0}
    for level in range(1, len(sizes) + 1):
        longer = {}
        for path, score in scores.items():
            logits = plain_logits(generator, head, states, path)
            children = sorted({t[level - 1] for t in tuples if t[: level - 1] == path})
            total = np.logaddexp.reduce(logits[children])
            longer.update({(*path, c): score + logits[c] - total for c in children})
        scores = longer
    return scores
