"""The layout of a slot: every tensor has bytes of its own and all fit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.kv.arena import Region, Row
from genrec.kv.layout import Layout
from genrec.models.config import ModelConfig


@settings(max_examples=80, deadline=None)
@given(
    levels=st.integers(1, 5), rows=st.integers(1, 4), width=st.integers(1, 40), layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2]), size=st.sampled_from([4, 6]), span=st.integers(1, 10),
    kv_type=st.sampled_from(["f32", "bf16"]),
)  # fmt: skip
def test_tensors_do_not_overlap_and_fit(levels, rows, width, layers, heads, size, span, kv_type):
    config = ModelConfig(
        tuple(range(3, 3 + levels)), max_history=10, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=heads, head_dim=size,
    )  # fmt: skip
    layout = Layout(config, width, kv_type)
    memory = np.zeros(rows * layout.slot_bytes, np.uint8)
    region = Region(memory, rows, min(span, config.max_prompt), ())
    views = [layout.first_logits(region), *(layout.shared(region, n) for n in range(2 * layers))]
    for number in range(rows):
        row = Row(memory, rows, region.span, number)
        views += [layout.unshared(row, n, u, width) for n in range(2 * layers) for u in range(levels - 2)]
        if levels > 1:
            views.append(layout.logits(row, int(np.argmax(config.codebook_sizes)) + 1, width))
        assert (layout.row_shared(row, 0).shape) == (1, heads, region.span, size)
        assert np.shares_memory(layout.logits(row, 1, 1), layout.first_logits(region))
    for view in views:
        view += np.ones((), view.dtype)
    assert all((view == 1).all() for view in views)
