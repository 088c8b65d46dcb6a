"""A prompt that goes on behind the KV of what was before, against all of it at once."""

from __future__ import annotations

import pytest
import torch

from genrec.draft.options import DraftConfig
from genrec.models.config import ModelConfig
from genrec.nn.draft_head import DraftHead, PrefillDraftGraph, ResumeDraftGraph
from genrec.nn.model import Generator
from genrec.nn.xattention import PrefillGraph, ResumeGraph

PROMPT = torch.tensor([[1, 13, 25, 2, 14, 26, 3, 15, 27]])


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("past", [1, 4, 8])
def test_what_is_new_is_what_the_whole_prompt_gives(model_type: str, past: int) -> None:
    torch.manual_seed(1)
    config = ModelConfig(
        (12, 12, 12), 16, hidden_size=32, head_dim=8, intermediate_size=48, model_type=model_type
    )
    generator = Generator(config).eval()
    logits, *whole = PrefillGraph(generator)(PROMPT, torch.tensor([9]))
    # More than counts, as an entry of the pool has: what lies behind is not read.
    before = [kv.clone() for kv in whole]
    for kv in before:
        kv[:, :, past:] = 1e3
    found, *new = ResumeGraph(generator)(PROMPT[:, past:], torch.tensor([past]), before)
    torch.testing.assert_close(found, logits, atol=1e-5, rtol=0)
    for mine, kv in zip(new, whole, strict=True):
        torch.testing.assert_close(mine, kv[:, :, past:], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("placeholders", [True, False])
@pytest.mark.parametrize("past", [0, 1, 8])
def test_a_draft_s_states_are_those_of_the_whole_prompt(placeholders: bool, past: int) -> None:
    torch.manual_seed(1)
    config = ModelConfig((12, 12, 12), 16, hidden_size=32, head_dim=8, intermediate_size=48)
    generator = Generator(config).eval()
    head = DraftHead(config, DraftConfig(placeholders=placeholders)).eval()
    extra = torch.arange(3 if placeholders else 0)[None] + config.vocab_size
    given = torch.cat((PROMPT, extra), 1)
    want = PrefillDraftGraph(generator, head)(given, torch.tensor([9]))
    _, *whole = PrefillGraph(generator)(PROMPT, torch.tensor([9]))
    states, *new = ResumeDraftGraph(generator, head)(given[:, past:], torch.tensor([past]), whole)
    torch.testing.assert_close(states, want, atol=1e-5, rtol=0)
    for mine, kv in zip(new, whole, strict=True):
        torch.testing.assert_close(mine[:, :, : 9 - past], kv[:, :, past:], atol=1e-5, rtol=0)
