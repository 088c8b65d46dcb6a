"""NEZHA's draft head: the whole semantic ID from one pass of the generator (section 3.2, equations 1 to 3).

L placeholders follow the prompt; one prefill gives h_0 (the last real token) and h_1 .. h_L (the placeholders).

    s_1 = h_0                          (1)
    p_l = logit_head_l(h_l, s_l)       (2)  linear over both, so the part of h_l is one row per request
    s_{l+1} = Transition_l(s_l, e_l)   (3)  a GRU; e_l is the generator's embedding of the code chosen

The generator's own parameters and their names are left as they are.
"""

from __future__ import annotations

from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn

from genrec.draft.options import DraftConfig
from genrec.models.config import ModelConfig
from genrec.nn.functions import rows
from genrec.nn.model import Generator
from genrec.nn.xattention import behind_past


class DraftHead(nn.Module):
    """Placeholders, logit heads and transitions of one generator; `options` may leave parts out (Table 4)."""

    def __init__(self, config: ModelConfig, options: DraftConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, self.options, self.drop = config, options, nn.Dropout(dropout)
        self.learns_from = 1
        size, levels = config.hidden_size, config.levels
        if options.placeholders:
            self.placeholders = nn.Parameter(torch.randn(levels, size) * 0.02)
        # Without a state the heads read h_l alone; without placeholders too, all read h_0 (the MTP row).
        if options.placeholders or options.transition == "none":
            self.hidden_heads = nn.ModuleList(nn.Linear(size, t) for t in config.codebook_sizes)
        if options.transition != "none":
            self.state_heads = nn.ModuleList(nn.Linear(size, t, bias=False) for t in config.codebook_sizes)
        if options.transition == "gru":
            self.transitions = nn.ModuleList(nn.GRUCell(size, size) for _ in range(levels - 1))

    def hidden_head(self, level: int) -> nn.Linear | None:
        """The part of a level's logit head that reads h_l, if any."""
        return cast("nn.Linear", self.hidden_heads[level - 1]) if hasattr(self, "hidden_heads") else None

    def state_head(self, level: int) -> nn.Linear | None:
        """The part that reads s_l, if any."""
        return cast("nn.Linear", self.state_heads[level - 1]) if hasattr(self, "state_heads") else None

    def cell(self, level: int) -> nn.GRUCell:
        """The transition after a level's code."""
        return cast("nn.GRUCell", self.transitions[level - 1])

    @torch.no_grad()
    def start_from(self, generator: Generator) -> None:
        """Begin where the generator is: its own head reads the state, and at level 1 that is all there is."""
        for level in range(1, self.config.levels + 1):
            self._start_level(level, generator)

    def _start_level(self, level: int, generator: Generator) -> None:
        start, size = self.config.code_offsets[level - 1], self.config.codebook_sizes[level - 1]
        rows = generator.lm_head.weight[start : start + size]
        state_head, hidden_head = self.state_head(level), self.hidden_head(level)
        if state_head is not None:
            state_head.weight.copy_(rows)
        if hidden_head is not None:
            hidden_head.bias.zero_()
            hidden_head.weight.copy_(rows)
            if level == 1 and state_head is not None:
                hidden_head.weight.zero_()

    @torch.no_grad()
    def keep_first_level(self, generator: Generator) -> None:
        """Have level 1 say what a frozen generator says, where it reads what that takes: nothing is to be learnt."""
        reads_h_1 = self.options.placeholders and self.options.transition == "none"
        if reads_h_1 or self.config.levels == 1:
            return
        self._start_level(1, generator)
        self.learns_from = 2
        for part in (self.hidden_head(1), self.state_head(1)):
            if part is not None:
                part.requires_grad_(False)

    def logits(self, level: int, hidden: Tensor, state: Tensor) -> Tensor:
        """Equation 2: hidden [..., 1 + L, hidden] (h_0 first; h_0 alone without placeholders), state [..., hidden]
        -> [..., T_level].
        """
        read = hidden[..., level if self.options.placeholders else 0, :]
        parts = ((self.hidden_head(level), read), (self.state_head(level), state))
        return reduce(torch.add, [head(self.drop(x)) for head, x in parts if head is not None])

    def advance(self, level: int, state: Tensor, embedded: Tensor) -> Tensor:
        """Equation 3: the state after level `level`'s code: state, embedded [..., hidden] -> [..., hidden]."""
        if self.options.transition == "gru":
            moved: Tensor = self.cell(level)(embedded.flatten(0, -2), state.flatten(0, -2))
            return moved.view(embedded.shape)
        return state + embedded if self.options.transition == "add" else state


def embedded_prompt(
    table: Tensor, placeholders: Tensor | None, tokens: Tensor, prompt_length: Tensor
) -> tuple[Tensor, Tensor]:
    """What a draft's one pass reads, x [B, S, hidden], and at which positions [B, 1 + L] its states are.

    tokens [B, S], lengths [B]; `table` [V, hidden] embeds codes. Placeholder l, of `placeholders` [L, hidden], is token
    V + l - 1 and stands right after the row's last real token. Without placeholders only h_0 is read.
    """
    reach = 1 if placeholders is None else 1 + len(placeholders)
    after = torch.arange(reach, device=tokens.device)
    return embedded(table, placeholders, tokens), (prompt_length.to(torch.int64) - 1).unsqueeze(1) + after


def embedded(table: Tensor, placeholders: Tensor | None, tokens: Tensor) -> Tensor:
    """tokens [B, S] -> [B, S, hidden]; see `embedded_prompt`."""
    return rows(table if placeholders is None else torch.cat((table, placeholders)), tokens)


def prompt_states(generator: Generator, head: DraftHead, tokens: Tensor, prompt_length: Tensor) -> Tensor:
    """One pass over prompts whose placeholders are in `tokens` already: [B, S], [B] -> [B, 1 + L, hidden]."""
    placeholders = head.placeholders if head.options.placeholders else None
    table = generator.embed_tokens.weight
    hidden, _ = generator.prefill_at(*embedded_prompt(table, placeholders, tokens, prompt_length))
    return hidden


class PrefillDraftGraph(nn.Module):
    """Prompt and placeholders to the states a draft needs: what `prefill_draft.onnx` holds. No KV leaves it."""

    def __init__(self, generator: Generator, head: DraftHead) -> None:
        super().__init__()
        self.generator, self.head = generator, head

    def forward(self, tokens: Tensor, prompt_length: Tensor) -> Tensor:
        """tokens [B, S], prompt_length [B] -> states [B, 1 + L, hidden]."""
        return prompt_states(self.generator, self.head, tokens, prompt_length)


class ResumeDraftGraph(nn.Module):
    """The same behind the KV of what was before, B = 1: what `resume_draft.onnx` holds. KV leaves it."""

    def __init__(self, generator: Generator, head: DraftHead) -> None:
        super().__init__()
        self.generator, self.head = generator, head

    def forward(self, tokens: Tensor, past_length: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        """tokens [1, Q], the placeholders last; the rest as in `genrec.nn.xattention.behind_past`.

        Returns states [1, 1 + L, hidden], then per layer new k, v [1, G, Q, D], the placeholders' among them.
        """
        placeholders = self.head.placeholders if self.head.options.placeholders else None
        read = 1 if placeholders is None else 1 + len(placeholders)
        x = embedded(self.generator.embed_tokens.weight, placeholders, tokens)
        states, new = behind_past(self.generator, x, past_length, past, read)
        return (states, *new)
