"""The writer of rankers: `rank_prefill.onnx`, `extend.onnx`, one `rank_<order>.onnx` per order, and what turns states
into scores.

A first entry of a user, and those of items, are made by `rank_prefill.onnx`: `prefill.onnx` gives the same KV where the
ranker has the generator's layers, and computes scores of codes that nobody reads here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.export import Dim

from export.graph import Traced, tokens_axis, write
from export.names import EXTEND, RANK_ORDERS, RANK_PREFILL
from genrec.models.config import ModelConfig
from genrec.nn.rank_graphs import ExtendGraph, ItemFirstGraph, RankPrefillGraph, SplitGraph, UserFirstGraph
from genrec.nn.ranker import Ranker
from genrec.nn.xattention import shared_names
from genrec.rank.head import FILE_NAME, TABLE
from genrec.tensor_file import write_tensors

MOST_CANDIDATES, MOST_ITEMS = 4096, 1 << 31
ATTENTION = {
    RANK_PREFILL: "CausalAttention",
    EXTEND: "PastAttention",
    "rank_user": "ItemAttention",
    "rank_item": "BehindItemsAttention",
}


def functions(config: ModelConfig, name: str, own: int) -> dict[str, int]:
    """How often the graph `name` calls each function of `genrec.nn`; discriminant tokens have `own` layers.

    Of tokens whose KV alone is wanted, the last layer computes keys and values and nothing else.
    """
    layers, turned = config.num_hidden_layers, "NormRotate" if config.model_type == "qwen3" else "Rotate"
    counts: Counter[str] = Counter()
    if name in ATTENTION:
        counts += Counter(
            {
                "Rows": 1, "Angles": 1, "RMSNorm": 2 * layers - 1, "Linear": 3 * layers - 1, turned: 2 * layers - 1,
                "AddLinear": 2 * layers - 2, "SwiGLU": layers - 1, ATTENTION[name]: layers - 1,
            }
        )  # fmt: skip
    if name in RANK_ORDERS.values():
        angles = 1 if name == RANK_ORDERS["user"] else 2
        counts += Counter(
            {
                "Angles": angles, "RMSNorm": 2 * own + 1, "Linear": own, turned: angles * own,
                "AddLinear": 2 * own, "SwiGLU": own, "DiscriminantAttention": own,
            }
        )  # fmt: skip
    return dict(+counts)


def export_rank_graph(ranker: Ranker, name: str, folder: Path) -> Path:
    """Write one graph of `ranker`, and with `extend`, which every ranker has, its head; returns the ONNX file."""
    if name == EXTEND:
        save_head(ranker, folder)
    traced = RANK_GRAPHS[name](ranker, ranker.options.item_tokens)
    return write(traced, functions(ranker.config, name, len(ranker.layers())), folder / f"{name}.onnx")


def save_head(ranker: Ranker, folder: Path) -> None:
    """What `genrec.rank.head.RankerHead` reads."""
    table = ranker.table().detach().numpy()
    write_tensors(folder / FILE_NAME, {TABLE: np.ascontiguousarray(table, np.float32)})


def _user_entry(config: ModelConfig, users: int = 1) -> list[torch.Tensor]:
    return [torch.randn(users, config.num_key_value_heads, 7, config.head_dim) for _ in shared_names(config)]


def _items(config: ModelConfig, item_tokens: int) -> torch.Tensor:
    return torch.randn(
        5, 2 * config.num_hidden_layers, config.num_key_value_heads, item_tokens, config.head_dim
    )


def _longest(ranker: Ranker) -> int:
    return ranker.options.longest_history(ranker.config)


def _prefill(ranker: Ranker, _: int) -> Traced:
    batch, span = Dim("B", max=4096), tokens_axis("S", _longest(ranker))
    return Traced(
        RankPrefillGraph(ranker), (torch.zeros(2, 7, dtype=torch.int64),), ({0: batch, 1: span},),
        ["tokens"], shared_names(ranker.config),
    )  # fmt: skip


def _extend(ranker: Ranker, _: int) -> Traced:
    config = ranker.config
    new, past = tokens_axis("Q", _longest(ranker)), tokens_axis("P", _longest(ranker))
    entry, names = _user_entry(config), shared_names(config)
    return Traced(
        ExtendGraph(ranker), (torch.zeros(1, 5, dtype=torch.int64), torch.tensor([6]), entry),
        ({1: new}, {}, [{2: past}] * len(names)),
        ["tokens", "past_length", *names], [f"new_{name}" for name in names],
    )  # fmt: skip


def _split(ranker: Ranker, item_tokens: int) -> Traced:
    config, names = ranker.config, shared_names(ranker.config)
    table, many, span, batch = (
        Dim("M", max=MOST_ITEMS),
        Dim("C", max=MOST_CANDIDATES),
        tokens_axis("S", _longest(ranker)),
        Dim("B", max=4096),
    )
    users = Dim("U", max=4096)  # B too, but no shape may come from it: an engine may have each user apart
    chosen = torch.zeros(2, 3, dtype=torch.int64)
    return Traced(
        SplitGraph(ranker), (_items(config, item_tokens), chosen, torch.tensor([6, 4]), _user_entry(config, 2)),
        ({0: table}, {0: batch, 1: many}, {0: batch}, [{0: users, 2: span}] * len(names)),
        ["items", "rows", "prompt_length", *names], ["states"],
    )  # fmt: skip


def _user(ranker: Ranker, item_tokens: int) -> Traced:
    config, names = ranker.config, shared_names(ranker.config)
    many, span = Dim("C", max=MOST_CANDIDATES), tokens_axis("S", _longest(ranker))
    candidates = torch.zeros(1, 3, item_tokens, dtype=torch.int64)
    return Traced(
        UserFirstGraph(ranker), (candidates, torch.tensor([6]), _user_entry(config)),
        ({1: many}, {}, [{2: span}] * len(names)), ["candidates", "prompt_length", *names], ["states"],
    )  # fmt: skip


def _item(ranker: Ranker, item_tokens: int) -> Traced:
    config = ranker.config
    table, many, span = (
        Dim("M", max=MOST_ITEMS),
        Dim("C", max=MOST_CANDIDATES),
        tokens_axis("S", _longest(ranker)),
    )
    chosen, tokens = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 7, dtype=torch.int64)
    return Traced(
        ItemFirstGraph(ranker), (tokens, _items(config, item_tokens), chosen), ({1: span}, {0: table}, {1: many}),
        ["tokens", "items", "rows"], ["states"],
    )  # fmt: skip


RANK_GRAPHS = {
    RANK_PREFILL: _prefill, EXTEND: _extend,
    RANK_ORDERS["split"]: _split, RANK_ORDERS["user"]: _user, RANK_ORDERS["item"]: _item,
}  # fmt: skip
