"""What a ranking cannot do without: operations of its products with weights and of its attention, by counting.

A multiply-add is two. Of what only others read the last layer makes keys and values alone.
"""

from __future__ import annotations

from typing import NamedTuple

from genrec.models.config import ModelConfig


class Ranked(NamedTuple):
    """One ranking: its order (`whole` is user order without reuse), its tokens, and what of them was reused.

    `marks` discriminant tokens: one per candidate, which sees the user and its item, or one for all.
    """

    order: str
    user: int
    candidates: int
    item: int  # tokens of one candidate
    user_reused: int  # tokens
    items_reused: int  # candidates
    marks: int


def operations(ranked: Ranked, model: ModelConfig) -> int:
    """Of all layers, for the tokens that are computed."""
    return products(ranked, model) + attention(ranked, model)


def products(ranked: Ranked, model: ModelConfig) -> int:
    """Those with weights."""
    width, size = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    keys = 2 * model.hidden_size * size
    layer = keys + model.hidden_size * (2 * width + 3 * model.intermediate_size)
    others, layers = _others(ranked), model.num_hidden_layers
    return 2 * (others * ((layers - 1) * layer + keys) + ranked.marks * layers * layer)


def attention(ranked: Ranked, model: ModelConfig) -> int:
    """Scores, and sums of values."""
    width, layers = model.num_attention_heads * model.head_dim, model.num_hidden_layers
    pairs, of_marks = _pairs(ranked)
    return 4 * width * ((layers - 1) * pairs + layers * of_marks)


def _in_user_order(ranked: Ranked) -> bool:
    return ranked.order in ("user", "whole")


def _others(r: Ranked) -> int:
    """Tokens that are computed beside the discriminant ones."""
    user = r.user - r.user_reused * (r.order != "item")
    return user + (r.candidates - r.items_reused * (not _in_user_order(r))) * r.item


def _pairs(r: Ranked) -> tuple[int, int]:
    """Keys that those read, all together, and that discriminant tokens read."""
    user, items = _triangle(r.user) - _triangle(r.user_reused), r.candidates * r.item
    alone = (r.candidates - r.items_reused) * _triangle(r.item)
    of_marks = r.marks * (r.user + r.item) if r.marks == r.candidates else r.user + items
    if _in_user_order(r):
        return user + items * r.user + r.candidates * _triangle(r.item), of_marks
    if r.order == "item":
        return alone + r.user * items + _triangle(r.user), of_marks
    return user + alone, of_marks


def _triangle(n: int) -> int:
    """Keys that n tokens read which see themselves and those before."""
    return n * (n + 1) // 2
