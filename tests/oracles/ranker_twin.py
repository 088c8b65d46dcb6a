"""The slow, obvious ranker: one candidate at a time over the whole sequence, explicit mask and positions, float64."""

from __future__ import annotations

import copy

import torch

from genrec.nn.ranker import IDENTIFIER, Ranker

USER, DISCRIMINANT = -1, -2  # whose a token is; an item's are numbered from 0


def plain_scores(
    ranker: Ranker, user: list[int], items: list[list[int]], codes: list[list[int]], order: str
) -> list[float]:
    """A score per candidate, of a user's tokens, the candidates' tokens and their semantic IDs as tokens."""
    wide = copy.deepcopy(ranker).double().eval()
    return [plain_score(wide, user, items, codes[c], order, c) for c in range(len(items))]


@torch.no_grad()
def plain_score(
    ranker: Ranker, user: list[int], items: list[list[int]], codes: list[int], order: str, wanted: int
) -> float:
    """The discriminant token of candidate `wanted` is the last of the sequence; all items are in it."""
    tokens = [(t, c, place) for c, item in enumerate(items) for place, t in enumerate(item)]
    tokens += [(t, USER, place) for place, t in enumerate(user)]
    owners = [owner for _, owner, _ in tokens] + [DISCRIMINANT]
    places = [place for _, _, place in tokens] + [0]
    count, length, theta = len(items[0]), len(user), ranker.config.rope_theta
    starts = {"user": (0, length), "item": (count, 0), "split": (0, 0)}[order]  # of the user, of all items
    last = len(tokens)

    def position(n: int) -> int:
        return places[n] + starts[0 if owners[n] == USER else 1]

    def turned(x: torch.Tensor, at: int) -> torch.Tensor:  # [heads, D]
        angle = at * theta ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def asks_from(query: int, key: int) -> int:
        """The position of a query as a key sees it; the last token is as far from every key as in order `user`."""
        if query != last:
            return position(query)
        return starts[0] + length + count if owners[key] == USER else starts[1] + count

    def sees(query: int, key: int) -> bool:
        if query == last:
            newest = places[key] >= length - (ranker.options.reach or length)
            return owners[key] == wanted or (owners[key] == USER and newest)
        if owners[query] == owners[key]:
            return places[key] <= places[query]
        between = {"user": (USER,), "item": range(len(items)), "split": ()}[order]  # whom the others see
        return owners[key] in between and (owners[query] == USER) != (owners[key] == USER)

    embedded = ranker.generator.embed_tokens.weight
    x = torch.stack([embedded[t] for t, _, _ in tokens] + [ranker.discriminant])
    for n, shared in enumerate(ranker.generator.blocks()):
        # Below its first layer the last token waits.
        of = [shared] * last + ([ranker.layers()[n - ranker.first]] if n >= ranker.first else [])
        q, k, v = ([], [], [])
        for layer, token in zip(of, x, strict=False):
            attention, normed = layer.self_attn, layer.input_layernorm(token)
            for found, part, norm in (
                (q, attention.q_proj, attention.q_norm), (k, attention.k_proj, attention.k_norm),
                (v, attention.v_proj, None),
            ):  # fmt: skip
                heads = part(normed).view(-1, attention.size)
                found.append(heads if norm is None else norm(heads))
        group = len(q[0]) // len(k[0])
        new = []
        for query, (layer, token) in enumerate(zip(of, x, strict=False)):
            seen = [key for key in range(last) if sees(query, key)]
            logits = torch.stack(
                [
                    (turned(q[query], asks_from(query, key))
                     * turned(k[key], position(key)).repeat_interleave(group, 0)).sum(-1)
                    for key in seen
                ]
            )  # fmt: skip
            weight = (logits / q[query].shape[-1] ** 0.5).softmax(0)  # [keys, heads]
            attended = sum(
                w[:, None] * v[key].repeat_interleave(group, 0) for w, key in zip(weight, seen, strict=True)
            )
            new.append(layer.finish(token, attended))
        x = torch.stack([*new, *x[len(new) :]])
    identifier = ranker.identifiers[codes].sum(0) * IDENTIFIER + ranker.score
    return float((ranker.norm(x[last]) * identifier).sum())
