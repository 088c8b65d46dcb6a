"""Prompts with text around items: what is laid out at once equals what is written token by token."""

import numpy as np
import pytest

from genrec.errors import InputError
from genrec.models.config import PROMPT, ModelConfig
from genrec.models.prompt import prompt_of
from tests.oracles.twin import spelled_out


@pytest.mark.parametrize("seed", range(40))
def test_a_prompt_is_what_is_written_token_by_token(seed):
    draw = np.random.default_rng(seed)
    text = {name: tuple(draw.integers(0, 20, draw.integers(0, 4)).tolist()) for name in PROMPT}
    config, many = ModelConfig((6, 5), 5, vocab_size=20, **text), int(draw.integers(1, 6))
    items = draw.integers(0, 11, (many, 2)).astype(np.int32)
    found = prompt_of(config, items)
    assert found.dtype == np.int32 and found.tolist() == spelled_out(config, items.tolist())
    assert len(found) == config.prompt_length(many) <= config.max_prompt


def test_no_history_has_no_prompt():
    config = ModelConfig((6, 5), 5, vocab_size=20, prompt_before=(12, 13), prompt_after=(14,))
    assert len(prompt_of(config, np.zeros((0, 2), np.int32))) == config.prompt_length(0) == 0


@pytest.mark.parametrize("token", [-1, 20])
def test_text_outside_of_the_vocabulary_is_refused(token):
    with pytest.raises(
        InputError, match=r"prompt_between: leaves the vocabulary \(accepted: tokens 0 to 19\)"
    ):
        ModelConfig((6, 5), 5, vocab_size=20, prompt_between=(3, token))


def test_text_survives_its_file(tmp_path):
    config = ModelConfig((6, 5), 5, vocab_size=20, prompt_before=(12, 13), prompt_between=(14,))
    config.save(tmp_path / "config.json")
    assert ModelConfig.load(tmp_path / "config.json") == config and config.has_text
