"""The arithmetic of a request against what the layout and the checkpoint really hold; facts of the machine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from genrec.kv.arena import Region, Row
from genrec.kv.layout import Layout
from genrec.models.config import ModelConfig
from perf.kit import machine, report
from perf.kit.machine import Roofline
from perf.kit.work import work

CONFIG = ModelConfig((12, 10, 14), max_history=16, hidden_size=32, head_dim=8, intermediate_size=64)


@pytest.mark.parametrize("kv_type", ["f32", "bf16"])
@pytest.mark.parametrize("width", [1, 32])
def test_kv_bytes_are_those_of_the_arena(kv_type: str, width: int) -> None:
    layout, prompt = Layout(CONFIG, width, kv_type), 32
    memory = np.zeros(layout.slot_bytes, np.uint8)
    region, row = Region(memory, 1, prompt, ((0, 0, 0, 0),)), Row(memory, 1, prompt, 0)
    tensors = range(2 * CONFIG.num_hidden_layers)
    found = work(CONFIG, prompt, width, kv_type)
    assert found.kv_shared_bytes == sum(layout.shared(region, n).nbytes for n in tensors)
    assert found.kv_unshared_bytes == sum(layout.unshared(row, n, 0, width).nbytes for n in tensors)
    largest = max(layout.logits(row, level, width).nbytes for level in (2, 3))
    assert found.logits_bytes == layout.first_logits(region).nbytes + largest
    assert found.kv_bytes <= layout.slot_bytes


def test_operations_against_a_loop_over_tokens() -> None:
    """Every token of every layer, every score, one by one."""
    c, prompt, width = CONFIG, 6, 4
    heads, groups = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    matrices = [
        (c.hidden_size, heads), (c.hidden_size, groups), (c.hidden_size, groups), (heads, c.hidden_size),
        *2 * [(c.hidden_size, c.intermediate_size)], (c.intermediate_size, c.hidden_size),
    ]  # fmt: skip
    token = c.num_hidden_layers * sum(2 * a * b for a, b in matrices)

    def attention(seen: float) -> float:
        return c.num_hidden_layers * seen * c.num_attention_heads * (2 * c.head_dim + 2 * c.head_dim)

    last = 1 / c.num_hidden_layers
    whole = sum(token + attention(position + 0.5) for position in range(prompt))  # half of the diagonal
    kv = 2 * 2 * c.hidden_size * groups
    prefill = (1 - last) * whole + prompt * kv  # the last layer gives the KV of all positions,
    prefill += last * (token + attention(prompt)) - kv + 2 * c.hidden_size * 12  # and the rest of one
    decode = 0.0
    for level, size in ((2, 10), (3, 14)):
        decode += width * (token + attention(prompt + level - 1) + 2 * c.hidden_size * size)
    found = work(c, prompt, width, "f32")
    assert found.prefill_operations == prefill and found.decode_operations == decode
    prompts = sum((1 - last) * attention(position + 0.5) for position in range(prompt)) + last * attention(
        prompt
    )
    beams = width * (attention(prompt + 1) + attention(prompt + 2))
    assert (found.prefill_attention, found.decode_attention) == (prompts, beams)
    assert found.weight_bytes == 4 * token / 2


def test_the_roofline_takes_the_slower_of_computing_and_reading() -> None:
    limits = Roofline(100.0, 50.0, 400.0, read_gb_s=10.0, copy_gb_s=10.0, threads=2)
    assert limits.seconds(1e11, 1e9) == 1.0
    assert limits.seconds(1e9, 1e10) == 1.0
    assert limits.seconds(4e11, 0, bf16=True) == 1.0
    without = Roofline(100.0, None, None, 10.0, 10.0, 2)
    assert without.seconds(1e11, 0, bf16=True) == 1.0
    found = work(CONFIG, 32, 8, "f32").least_ms(limits, bf16=False)
    assert set(found) == {"prefill", "decode"} and min(found.values()) > 0


def test_facts_say_what_and_not_whose() -> None:
    found = machine.facts()
    assert found["cpu"] and found["cores"] >= found["usable_cores"] >= 1
    assert found["versions"]["tritonclient"] == "2.51.0" and found["triton"] == "2.51.0"
    assert "/" not in json.dumps(found["versions"])
    assert machine.numpy_gemm(1, 64) > 0
    assert machine.openvino_gemm("f32", 1, 64) > 0
    assert min(machine.bandwidth(1, 1 << 20)) > 0


def test_settings_keep_names_not_folders(tmp_path: object) -> None:
    assert report.settings_of({"artifact": tmp_path / "beauty", "rate": 3}) == {
        "artifact": "beauty",
        "rate": 3,
    }
