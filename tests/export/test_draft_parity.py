"""One pass to the states of a draft, five ways: float64, torch, all prompts at once, ONNX Runtime, OpenVINO."""

import numpy as np
import onnxruntime
import pytest
import torch

from genrec.draft.options import DraftConfig
from genrec.engine.instructions import engine_of
from genrec.engine.load import load_passes
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import load_draft
from genrec.nn.draft_head import prompt_states
from genrec.nn.draft_loss import read_blocks
from genrec.nn.model import Generator
from tests.oracles.draft_twin import plain_states
from tests.tiny import random_head

HISTORY = [1, 13, 25, 2, 14, 26, 3, 15, 27]
LENGTHS = np.array([9, 6])


def prompts(vocabulary, levels, placeholders=True):
    """Two prompts of three and two items, placeholders after each, padded right."""
    extra = [vocabulary + level for level in range(levels)] if placeholders else []
    return np.array([HISTORY + extra, HISTORY[:6] + extra + [0] * 3])


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("options", [DraftConfig(), DraftConfig("gru", False)], ids=str)
def test_torch_equals_the_full_pass_and_training_sees_the_same_states(model_type, options):
    torch.manual_seed(1)
    config = ModelConfig(
        (12, 12, 12), 16, hidden_size=32, head_dim=8, intermediate_size=48, model_type=model_type
    )
    generator, head = Generator(config).eval(), random_head(config, options)
    tokens = torch.from_numpy(prompts(36, 3, options.placeholders))
    states = prompt_states(generator, head, tokens, torch.from_numpy(LENGTHS))
    for row, length in enumerate(LENGTHS):
        assert np.allclose(states[row], plain_states(generator, head, HISTORY[:length]), atol=2e-5)
    _, kv = generator.prefill(torch.tensor([HISTORY]))
    if options.placeholders:
        taught = read_blocks(generator, kv, head.placeholders.expand(1, 3, -1, -1))[0]
        for items in (1, 2, 3):
            assert np.allclose(
                taught[items - 1], plain_states(generator, head, HISTORY[: 3 * items])[1:], atol=2e-5
            )
    codes = torch.tensor([[4, 17], [9, 20], [0, 12]])  # two codes of another item after every item
    other = read_blocks(generator, kv, generator.embed_tokens(codes)[None])[0]
    for items in (1, 2, 3):
        hidden, _ = generator.prefill(torch.tensor([[*HISTORY[: 3 * items], *codes[items - 1].tolist()]]))
        assert np.allclose(other[items - 1], hidden[0, -2:], atol=2e-5)


@torch.no_grad()
def test_onnx_runtime_and_openvino_equal_torch(tiny):
    generator, head = load_generator(tiny / "model"), load_draft(tiny / "model")
    tokens = prompts(36, 3)
    want = prompt_states(generator, head, torch.from_numpy(tokens), torch.from_numpy(LENGTHS)).numpy()
    session = onnxruntime.InferenceSession(tiny / "onnx" / "prefill_draft.onnx")
    (got,) = session.run(None, {"tokens": tokens, "prompt_length": LENGTHS})
    assert np.allclose(got, want, atol=5e-5)
    (engine,) = load_passes("openvino", engine_of(tiny, "openvino"), "f32")
    assert np.allclose(engine.draft_states(tokens, LENGTHS), want, atol=5e-5)
