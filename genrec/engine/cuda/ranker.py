"""The passes of a ranker on a GPU: order `split` over KV that stays there, the paper's orders by torch alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda import kernels, read_engine
from genrec.engine.cuda.discriminant import Discriminant, candidate_attention
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.host import tensor_of
from genrec.engine.cuda.kept import KeptItems, KeptUsers
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.cuda.operations import Operations
from genrec.engine.cuda.split import RANKINGS, OnDevice, SplitPasses
from genrec.engine.interface import Array, RankPasses, Split, UserName
from genrec.models.config import ModelConfig
from genrec.nn.attention import behind, behind_items
from genrec.nn.ranker import KV, Ranker
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.nn.xattention import xattention
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import Settings

MOST_TOKENS = 1 << 15  # of items' entries in one pass


class CudaRanker:
    """See `genrec.engine.interface.RankPasses`. One at a time per object."""

    most = RANKINGS

    def __init__(
        self,
        ranker: Ranker,
        kernel: XAttentionKernel | None,
        operations: Operations,
        user_bytes: int,
        item_bytes: int,
    ) -> None:
        """Without a `kernel` torch does its work. So many bytes of users' and items' KV stay on the device, and of
        items at least those of the largest ranking.
        """
        config, options = ranker.config, ranker.options
        self._ranker = ranker
        self.forward = Forward(ranker.generator, kernel or xattention, operations)
        self._device, self._dtype = self.forward.device, self.forward.dtype
        shape = 2 * config.num_hidden_layers, config.num_key_value_heads, options.item_tokens, config.head_dim
        row = int(np.prod(shape)) * self._dtype.itemsize
        self._items = KeptItems(self._device, self._dtype, shape, max(item_bytes // row, MOST_CANDIDATES))
        discriminant = Discriminant(ranker, kernel or candidate_attention, operations)
        self.passes = SplitPasses(
            discriminant,
            self._items.table,
            options.longest_history(config),
            options.reach,
            config.hidden_size,
        )
        self._users = KeptUsers(self._device, user_bytes, self.passes.wipe)

    @property
    def captured(self) -> int:
        """See `RankPasses.captured`."""
        return self.passes.captured

    def rehearse(self, candidates: int) -> None:
        """See `RankPasses.rehearse`."""
        self.passes.rehearse(candidates)

    def keep(self, name: UserName, user: Array) -> None:
        """See `RankPasses.keep`: so a ranking behind a pre-inference finds its user on the device (RelayGR)."""
        self._users.entry(name, user)

    def hold(self, items: Array) -> None:
        """See `RankPasses.hold`: it is page-locked."""
        self._items.locked.hold(items)

    def entries(self, tokens: Array, kv: Sequence[Array]) -> None:
        """See `RankPasses.entries`."""
        most = max(MOST_TOKENS // tokens.shape[1], 1)
        for first in range(0, len(tokens), most):
            rows = slice(first, first + most)
            self._give([each[rows] for each in kv], self.forward.prefix(self._tokens(tokens[rows])))

    @torch.no_grad()
    def extend(self, tokens: Array, past: int, kv: Sequence[Array], new: Sequence[Array]) -> None:
        """See `RankPasses.extend`."""
        length = torch.tensor([past], device=self._device)
        before = self._pairs([each[:, :, :past] for each in kv])
        found = self._ranker.prefix(self._tokens(tokens), length, behind(before, length))
        self._give(new, [each for pair in found for each in pair])

    def split(self, items: Array, rankings: Sequence[Split]) -> list[NDArray[np.float32]]:
        """See `RankPasses.split`. Rankings whose items together have no room are passes of their own.

        What it gives is valid until the next call.
        """
        if len(rankings) > 1 and sum(len(each.rows) for each in rankings) > self._items.places:
            return [self.split(items, [each])[0].copy() for each in rankings]
        rows = np.concatenate([each.rows for each in rankings])
        names = [each.item_names for each in rankings if each.item_names is not None]
        named = np.concatenate(names) if len(names) == len(rankings) else None
        places = self._items.rows(named, items, rows, rankings[0].unchanged)
        parts = np.split(places, np.cumsum([len(each.rows) for each in rankings])[:-1])
        users = (self._users.entry(each.user_name, each.user) for each in rankings)
        there = [
            OnDevice(user, each.length, own) for user, each, own in zip(users, rankings, parts, strict=True)
        ]
        return self.passes.states(there)

    @torch.no_grad()
    def user_first(self, candidates: Array, length: int, user: Sequence[Array]) -> NDArray[np.float32]:
        """See `RankPasses.user_first`. The user's KV is copied to the device."""
        pairs, end = self._pairs(user), torch.tensor([length], device=self._device)
        entries = self._ranker.candidates(self._tokens(candidates)[None], pairs, end)
        return self._states(pairs, end, entries, np.arange(len(candidates)), "user")

    @torch.no_grad()
    def item_first(self, tokens: Array, items: Array, rows: Array) -> NDArray[np.float32]:
        """See `RankPasses.item_first`. The items' KV is copied to the device."""
        table = tensor_of(items[rows]).to(self._device)
        mine = np.arange(len(rows))
        attend = behind_items(table, self._tokens(mine)[None])
        user = self._ranker.prefix(self._tokens(tokens), items.shape[3], attend)
        end = torch.tensor([tokens.shape[1]], device=self._device)
        return self._states(user, end, table, mine, "item")

    def _states(self, user: KV, end: Tensor, items: Tensor, rows: Array, order: str) -> NDArray[np.float32]:
        states = self._ranker.states(user, end, items, self._tokens(rows)[None], order)
        found: NDArray[np.float32] = states[0].float().cpu().numpy()
        return found

    def _give(self, into: Sequence[Array], found: Sequence[Tensor]) -> None:
        self._users.locked.hold(into[0])
        for array, tensor in zip(into, found, strict=True):
            tensor_of(array).copy_(tensor, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _pairs(self, kv: Sequence[Array]) -> KV:
        there = [tensor_of(np.ascontiguousarray(each)).to(self._device) for each in kv]
        return list(zip(there[0::2], there[1::2], strict=True))

    def _tokens(self, array: Array) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)


def load_rankers(folder: Path, config: ModelConfig, kv_type: str, settings: Settings) -> list[RankPasses]:
    """See `genrec.engine.openvino_ranker.load_rankers`: one device, one stream of passes. Raises ArtifactError."""
    device, dtype = read_engine(folder)
    ranker = load_ranker(folder.parent.parent / "model").to(device, dtype)
    kernel, operations = kernels(folder, device)
    sizes = (settings.pool_user_mb << 20, settings.pool_item_mb << 20) if settings.pool else (0, 0)
    return [CudaRanker(ranker, kernel, operations, *sizes)]
