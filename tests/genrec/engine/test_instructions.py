"""Which type this CPU serves."""

from pathlib import Path

import pytest

from genrec.engine import instructions
from genrec.engine.instructions import AVX512_BF16, TILES


@pytest.mark.parametrize(
    ("lacks", "kv_type"), [(set(), "bf16"), ({"avx512vbmi"}, "f32"), ({"avx512_bf16"}, "f32")]
)
def test_bf16_is_served_where_our_operations_have_it(monkeypatch, lacks, kv_type):
    """Not by rounding in software, where f32 is faster and nearer."""
    monkeypatch.setattr(instructions, "features", lambda: AVX512_BF16 - lacks)
    assert instructions.own_type() == kv_type


@pytest.mark.parametrize("granted", [True, False])
def test_tiles_count_where_a_process_may_use_them(monkeypatch, granted):
    monkeypatch.setattr(Path, "read_text", lambda _: " ".join(AVX512_BF16 | TILES))
    monkeypatch.setattr(instructions, "_tiles_are_granted", lambda: granted)
    assert instructions.features.__wrapped__() == (AVX512_BF16 | TILES if granted else AVX512_BF16)
