"""What a safetensors file of ours says in its header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from genrec.nn.checkpoint import write_weights
from genrec.tensor_file import mapped_tensors, write_tensors

SAID = {
    name: 'a "name"\n\\ \x01\x7f Käse 漢字 \U0001f600' for name in ("version", "generator", "é", "codes", "b")
}


def test_what_is_written_twice_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    """A file is known by its sha256: a stage would be made anew, and a delta refused, for the order of metadata."""
    path, values = tmp_path / "some.safetensors", np.arange(3, dtype=np.int64)
    ways = (
        lambda: write_tensors(path, {"some": values}, SAID),
        lambda: write_weights(path, {"some": torch.from_numpy(values)}, **SAID),
    )
    for way in ways:
        found = set()
        for _ in range(8):
            way()
            found.add(path.read_bytes())
        assert len(found) == 1
        with safe_open(path, framework="numpy") as file:
            assert {name: file.metadata()[name] for name in SAID} == SAID
        assert np.array_equal(mapped_tensors(path)["some"], values)
