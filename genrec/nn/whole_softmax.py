"""The softmax loss over a whole catalogue, without its scores in memory: T states against I items.

Scores and their gradients exist for a block of states at a time, and every product is taken once: gradients are made on
the way there. A block is what a CPU's caches hold; elsewhere it is large, so that launches are few.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_SCORES, BLOCK_SCORES_ELSEWHERE = 1 << 19, 1 << 27  # of one block
LEAST_TEMPERATURE = 0.03  # below it, what is unlikely is nothing in float32


def whole_softmax_loss(states: Tensor, vectors: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Summed cross entropy of float32 `states` [T, d] and item `vectors` [I, d], both of length 1, scores being their
    products over `temperature`, for `wanted` int64[T].
    """
    return _WholeSoftmax.apply(states, vectors, wanted, 1 / temperature)


class _WholeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, states: Tensor, vectors: Tensor, wanted: Tensor, scale: float
    ) -> Tensor:  # fmt: skip
        of_states, of_vectors = torch.empty_like(states), torch.zeros_like(vectors)
        total, most = states.new_zeros(()), BLOCK_SCORES if states.is_cpu else BLOCK_SCORES_ELSEWHERE
        block = max(most // len(vectors), 1)
        memory = states.new_empty(min(block, len(states)), len(vectors))  # of all blocks
        for start in range(0, len(states), block):
            span = slice(start, start + block)
            scaled, place = states[span] * scale, wanted[span].unsqueeze(1)
            scores = torch.mm(scaled, vectors.T, out=memory[: len(scaled)])
            likely = torch.softmax(scores, 1, out=scores)
            total -= likely.gather(1, place).log().sum()
            likely.scatter_add_(1, place, likely.new_full((1, 1), -1.0).expand_as(place))
            torch.mm(likely, vectors, out=of_states[span])
            of_vectors.addmm_(likely.T, scaled)
        ctx.save_for_backward(of_states.mul_(scale), of_vectors)
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_vectors = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * of_states, grad * of_vectors, None, None
