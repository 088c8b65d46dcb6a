"""A prompt that goes on behind the KV of what was before, against all of it at once."""

from __future__ import annotations

import pytest
import torch

from genrec.models.config import ModelConfig
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
