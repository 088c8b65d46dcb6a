"""Attention of the ranking path: tokens behind a past, candidates' tokens, discriminant tokens (BAT, section 4).

Keys and values of users are of shape [B, G, S, D], as a prefill gives them. Those of items lie in a table whose rows
are whole items: [M, 2N, G, t, D], k and v of layer 0, then of layer 1, ...; an item has t tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genrec.nn.functions import attend, exporting, node

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # of a layer's number and its q, k, v


def past_attention(q: Tensor, past_k: Tensor, past_v: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
    """New tokens q [B, Q, H, D], k, v [B, Q, G, D] behind a past [B, G, P, D], of which the first `length` [B] count.

    Each sees those, and new ones up to itself. Returns [B, Q, H, D].
    """
    new_k, new_v = k.transpose(1, 2), v.transpose(1, 2)
    if exporting():
        return node("PastAttention", (q, past_k, past_v, new_k, new_v, length), q.shape)
    batch, new, past = q.shape[0], q.shape[1], past_k.shape[2]
    of_past = (
        (torch.arange(past, device=q.device) < length.view(-1, 1))
        .view(batch, 1, 1, past)
        .expand(-1, -1, new, -1)
    )
    of_new = torch.ones(new, new, dtype=torch.bool, device=q.device).tril().expand(batch, 1, -1, -1)
    seen = torch.cat((of_past, of_new), 3)
    keys, values = (torch.cat(pair, 2).transpose(1, 2) for pair in ((past_k, new_k), (past_v, new_v)))
    return attend(q, keys, values, seen)


def behind_items_attention(
    q: Tensor, items: Tensor, rows: Tensor, k: Tensor, v: Tensor, layer: int
) -> Tensor:
    """A user's tokens q [B, Q, H, D], k, v [B, Q, G, D] behind whole items, rows `rows` [B, C] of a table.

    Each sees all tokens of those items, and the user's up to itself. Returns [B, Q, H, D].
    """
    if exporting():
        new = (k.transpose(1, 2), v.transpose(1, 2))
        return node("BehindItemsAttention", (q, *new, items, rows), q.shape, layer=layer)
    past_k, past_v = past_of(items, rows, layer)
    return past_attention(
        q, past_k, past_v, k, v, torch.full((q.shape[0],), past_k.shape[2], device=q.device)
    )


def past_of(items: Tensor, rows: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Rows [B, C] of items' table as a past of `layer`: k, v [B, G, C * t, D]."""
    mine = items[rows, 2 * layer : 2 * layer + 2]  # [B, C, 2, G, t, D]
    k, v = mine.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return k, v


def behind(past: list[tuple[Tensor, Tensor]], length: Tensor) -> Attend:
    """Tokens behind a past [B, G, P, D] per layer, of which the first `length` [B] count."""
    return lambda n, q, k, v: past_attention(q, *past[n], k, v, length)


def behind_items(items: Tensor, rows: Tensor) -> Attend:
    """A user's tokens behind rows [B, C] of items' table [M, 2N, G, t, D]."""
    return lambda n, q, k, v: behind_items_attention(q, items, rows, k, v, n)


def item_attention(
    q: Tensor, shared_k: Tensor, shared_v: Tensor, k: Tensor, v: Tensor, length: Tensor
) -> Tensor:
    """Candidates' tokens q [B, C, t, H, D], k, v [B, C, t, G, D]: each sees the user and its own item up to itself.

    The user is shared k, v [B, G, S, D] up to `length` [B]. Returns [B, C, t, H, D].
    """
    if exporting():
        return node("ItemAttention", (q, shared_k, shared_v, k, v, length), q.shape)
    batch, many, tokens, _, _ = q.shape
    span = shared_k.shape[2]
    of_user = (
        (torch.arange(span, device=q.device) < length.view(-1, 1))
        .view(batch, 1, 1, span)
        .expand(-1, many, tokens, -1)
    )
    of_item = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril().expand(batch, many, -1, -1)
    keys, values = (
        torch.cat((shared.transpose(1, 2).unsqueeze(1).expand(-1, many, -1, -1, -1), own), 2).flatten(0, 1)
        for shared, own in ((shared_k, k), (shared_v, v))
    )
    seen = torch.cat((of_user, of_item), 3).flatten(0, 1).unsqueeze(1)
    return attend(q.flatten(0, 1), keys, values, seen).view(q.shape)


def discriminant_attention(
    q: Tensor, q_item: Tensor, shared_k: Tensor, shared_v: Tensor, length: Tensor,
    items: Tensor, rows: Tensor, layer: int, reach: int = 0,
) -> Tensor:  # fmt: skip
    """Discriminant tokens: each sees the user by q [B, C, H, D], and its own item by q_item [B, C, H, D].

    They are the same query, turned to its place behind the user and behind the item. The item of candidate c is row
    `rows` [B, C] of the table `items` [M, 2N, G, t, D]. The user as in `item_attention`, but with `reach` only so many
    of his newest tokens. Returns [B, C, H, D].
    """
    if exporting():
        inputs = (q, shared_k, shared_v, items, rows, length, q_item)
        return node("DiscriminantAttention", inputs, q.shape, layer=layer, reach=reach)
    batch, many, _, size = q.shape
    kv_heads = shared_k.shape[1]
    mine = items[rows]  # [B, C, 2N, G, t, D]
    k, v = mine[:, :, 2 * layer], mine[:, :, 2 * layer + 1]
    grouped, grouped_item = (x.view(batch, many, kv_heads, -1, size) * size**-0.5 for x in (q, q_item))
    place, end = torch.arange(shared_k.shape[2], device=q.device), length.view(-1, 1, 1, 1, 1)
    hidden = (place >= end) | (place < end - reach if reach else place < 0)
    of_user = torch.einsum("bcgrd,bgsd->bcgrs", grouped, shared_k).masked_fill(hidden, -torch.inf)
    of_item = torch.einsum("bcgrd,bcgtd->bcgrt", grouped_item, k)
    weight = torch.cat((of_user, of_item), -1).softmax(-1)
    span = shared_k.shape[2]
    out = torch.einsum("bcgrs,bgsd->bcgrd", weight[..., :span], shared_v)
    return (out + torch.einsum("bcgrt,bcgtd->bcgrd", weight[..., span:], v)).reshape(q.shape)
