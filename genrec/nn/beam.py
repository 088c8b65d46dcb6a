"""Constrained beam search in torch: how the trainer measures a generator, and a slow twin of serving.

Validity is applied before top-k and the scores are renormalised over valid continuations; items to leave
out are pruned from the tree of semantic IDs, as the served system does. See `genrec` for the legend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.catalogue.items import Catalogue
from genrec.nn.device import device_of
from genrec.nn.functions import rotary
from genrec.nn.model import Block, Generator


@dataclass(frozen=True, eq=False)
class Tree:
    """The semantic IDs of a catalogue as a tree; nodes of a level are numbered in ascending path order.

    `codes` int64[n, L] as in the catalogue;
    `children[l]` int64[P_l, T_{l+1}] node of level l+1 or -1 (level 0 is the root, P_0 = 1), `invalid[l]` where -1;
    `child_codes[l]` int64[P_l, m] the codes of those that are there, ascending, -1 padded: m is far below T_{l+1};
    `node_of[l]` int64[n] the node of level l+1 above every item row; `leaf_items` item rows by leaf, most
    popular first (then smallest item id), `leaf_offsets` int64[P_L + 1].
    """

    codes: Tensor
    children: list[Tensor]
    invalid: list[Tensor]
    child_codes: list[Tensor]
    node_of: list[Tensor]
    leaf_items: npt.NDArray[np.int64]
    leaf_offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, catalogue: Catalogue) -> Tree:
        """Build the tree of a catalogue."""
        parent = np.zeros(len(catalogue), np.int64)
        children, node_of, parents = [], [], 1
        for level, size in enumerate(catalogue.codebook_sizes):
            path, node = np.unique(parent * size + catalogue.codes[:, level], return_inverse=True)
            table = np.full(parents * size, -1, np.int64)
            table[path] = np.arange(len(path))
            children.append(torch.from_numpy(table.reshape(parents, size)))
            node_of.append(torch.from_numpy(node))
            parent, parents = node, len(path)
        order = np.lexsort((catalogue.item_ids, -catalogue.popularity, parent))
        offsets = np.concatenate(([0], np.cumsum(np.bincount(parent))))
        # An eighth of the bytes, for who reads rows of it all day
        invalid = [table < 0 for table in children]
        child_codes = [_listed(table) for table in invalid]
        codes = torch.from_numpy(catalogue.codes.astype(np.int64))
        return cls(codes, children, invalid, child_codes, node_of, order, offsets)

    def to(self, device: torch.device) -> Tree:
        """The same with its tensors on `device`; items of leaves are read on the host."""
        children, invalid, child_codes, node_of = (
            [level.to(device) for level in levels]
            for levels in (self.children, self.invalid, self.child_codes, self.node_of)
        )
        return replace(
            self, codes=self.codes.to(device), children=children, invalid=invalid, child_codes=child_codes,
            node_of=node_of,
        )  # fmt: skip

    def alive(self, excluded: list[npt.NDArray[np.int64]]) -> list[Tensor]:
        """Which nodes keep an item without each request's `excluded` item rows: per level bool[B, P_l]."""
        request = torch.from_numpy(np.repeat(np.arange(len(excluded)), [len(e) for e in excluded]))
        rows = torch.from_numpy(np.concatenate(excluded).astype(np.int64))
        request, rows = request.to(self.codes.device), rows.to(self.codes.device)
        alive = []
        for node in self.node_of:
            items = torch.bincount(node).repeat(len(excluded), 1)
            items.index_put_((request, node[rows]), torch.tensor(-1, device=items.device), accumulate=True)
            alive.append(items > 0)
        return alive


def _listed(invalid: Tensor) -> Tensor:
    """Columns that are False in every row of `invalid` [P, T], ascending: int64[P, m], -1 padded."""
    row, code = torch.nonzero(~invalid, as_tuple=True)
    counts = torch.bincount(row, minlength=len(invalid))
    place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    listed = torch.full((len(invalid), int(counts.max())), -1)
    listed[row, place] = code
    return listed


def decode(
    model: Generator,
    tokens: Tensor,
    lengths: Tensor,
    shared: list[tuple[Tensor, Tensor]],
    own: list[list[tuple[Tensor, Tensor]]],
) -> Tensor:
    """One step of W beams: tokens [B, W], lengths [B], shared k, v [B, S, G, D] -> hidden [B, W, hidden].

    `own` holds per layer the k, v [B, W, G, D] of every earlier step; this step's are appended.
    """
    config, (batch, beams) = model.config, tokens.shape
    cos, sin = rotary(lengths + len(own[0]), config.head_dim, config.rope_theta)
    cos, sin = cos[:, None].expand(-1, beams, -1), sin[:, None].expand(-1, beams, -1)
    group = config.num_attention_heads // config.num_key_value_heads
    padding = torch.arange(shared[0][0].shape[1], device=lengths.device) >= lengths[:, None]
    x, blocks = model.embed_tokens(tokens), cast("list[Block]", list(model.layers))
    for layer, (keys, values), mine in zip(blocks, shared, own, strict=True):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        mine.append((k, v))
        q = q.unflatten(2, (-1, group)) * config.head_dim**-0.5
        far = torch.einsum("bwgrd,bsgd->bwgrs", q, keys)
        far = far.masked_fill(padding[:, None, None, None], -torch.inf)
        near = torch.stack([torch.einsum("bwgrd,bwgd->bwgr", q, k) for k, _ in mine], -1)
        weight = torch.cat((far, near), -1).softmax(-1)
        far, near = weight.split((far.shape[-1], near.shape[-1]), -1)
        attended = torch.einsum("bwgrs,bsgd->bwgrd", far, values)
        for step, (_, v) in enumerate(mine):
            attended = attended + near[..., step, None] * v.unsqueeze(3)
        x = layer.finish(x, attended.reshape(batch, beams, config.num_attention_heads, config.head_dim))
    return model.norm(x)


@torch.no_grad()
def beam_search(
    model: Generator,
    tree: Tree,
    tokens: Tensor,
    lengths: Tensor,
    excluded: list[npt.NDArray[np.int64]],
    beam_width: int,
) -> tuple[Tensor, Tensor]:
    """tokens [B, S] padded right, lengths [B], excluded item rows -> leaves [B, W], scores [B, W].

    Best first, ties by ascending semantic ID; scores of beams that do not exist are -inf. It runs where the model is,
    and the tree has to be there.
    """
    config, alive, batch, device = model.config, tree.alive(excluded), len(tokens), device_of(model)
    tokens, lengths, request = tokens.to(device), lengths.to(device), torch.arange(batch, device=device)
    hidden, shared = model.prefill(tokens)
    hidden = hidden[request, lengths - 1][:, None]
    nodes = torch.zeros(batch, 1, dtype=torch.long, device=device)
    scores = torch.zeros(batch, 1, device=device)
    own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.layers]
    for level in range(1, config.levels + 1):
        code = tree.child_codes[level - 1][nodes]  # [B, W, m]
        valid = (code >= 0) & (scores > -torch.inf).unsqueeze(-1)
        code = code.clamp(min=0)
        child = tree.children[level - 1][nodes.unsqueeze(-1), code].clamp(min=0)
        left = valid & alive[level - 1].gather(1, child.flatten(1)).view(child.shape)
        logits = model.head(hidden, level).float().gather(2, code).masked_fill(~valid, -torch.inf)
        extended = (
            (scores.unsqueeze(-1) + F.log_softmax(logits, -1)).masked_fill(~left, -torch.inf).flatten(1)
        )
        scores, picked = extended.topk(min(beam_width, extended.shape[1]))
        parents, codes = picked // child.shape[2], code.flatten(1).gather(1, picked)
        nodes = child.flatten(1).gather(1, picked)
        if level < config.levels:
            index = request[:, None]
            own = [[(k[index, parents], v[index, parents]) for k, v in layer] for layer in own]
            hidden = decode(model, codes + config.code_offsets[level - 1], lengths, shared, own)
    by_node = nodes.argsort(dim=1, stable=True)
    order = by_node.gather(1, scores.gather(1, by_node).argsort(dim=1, descending=True, stable=True))
    return nodes.gather(1, order), scores.gather(1, order)


def rank_items(
    tree: Tree, leaves: Tensor, scores: Tensor, excluded: list[npt.NDArray[np.int64]], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Leaves [B, W] best first -> item rows int64[B, K] (-1 padded) and scores float32[B, K].

    Items of one leaf share its score and come most popular first, excluded ones left out.
    """
    rows = np.full((len(leaves), k), -1, np.int64)
    values = np.full((len(leaves), k), -np.inf, np.float32)
    for b, (leaf, score) in enumerate(zip(leaves.cpu().numpy(), scores.cpu().numpy(), strict=True)):
        leaf, score = leaf[score > -np.inf][: k + len(excluded[b])], score[score > -np.inf]
        spans = [tree.leaf_items[tree.leaf_offsets[n] : tree.leaf_offsets[n + 1]] for n in leaf]
        if not spans:
            continue
        items = np.concatenate(spans)
        each = np.repeat(score[: len(leaf)], [len(s) for s in spans])
        keep = np.flatnonzero(~np.isin(items, excluded[b]))[:k]
        rows[b, : len(keep)], values[b, : len(keep)] = items[keep], each[keep]
    return rows, values
