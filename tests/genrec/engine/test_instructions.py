"""Which type this CPU serves."""

import pytest

from genrec.engine import instructions
from genrec.engine.instructions import AVX512_BF16


@pytest.mark.parametrize(
    ("lacks", "kv_type"), [(set(), "bf16"), ({"avx512vbmi"}, "f32"), ({"avx512_bf16"}, "f32")]
)
def test_bf16_is_served_where_our_operations_have_it(monkeypatch, lacks, kv_type):
    """Not by rounding in software, where f32 is faster and nearer."""
    monkeypatch.setattr(instructions, "features", lambda: AVX512_BF16 - lacks)
    assert instructions.own_type() == kv_type
