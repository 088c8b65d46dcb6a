"""Both ways of holding a request's KV: their arithmetic, that they compute the same, and one small cell of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, DecodePass, Passes
from genrec.engine.load import load_layout, load_passes
from genrec.kv.arena import Region, Row
from genrec.kv.layout import Layout
from genrec.search.constraint import Constraint
from genrec.search.undecided import pass_size
from genrec.settings import Settings
from perf.parts import peak_memory
from perf.parts.memory_plot import plot_memory
from perf.parts.peak_memory import WAYS, KvBytes, as_cell, flat_in_bw, kv_bytes, measure, table
from perf.parts.per_beam import PerBeam

PROMPT, WIDTH = 24, 32


class Remembering:
    """Passes that keep a copy of the last logits and the number of KV tokens that decode was given."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.prefill, self.draft_states = passes.prefill, passes.draft_states
        self.logits = np.empty(0, np.float32)
        self.shared_tokens: list[int] = []

    def decode(self, given: DecodePass) -> Array:
        logits = self._passes.decode(given)
        self.logits = logits.copy()
        self.shared_tokens.append(given.shared[0].shape[0] * given.shared[0].shape[2])
        return logits


@pytest.mark.parametrize("lengths", [[PROMPT], [PROMPT, 7]], ids=str)
def test_both_ways_compute_the_same(tiny: Path, lengths: list[int]) -> None:
    config, batch = load_config(tiny), len(lengths)
    kv_type = load_layout(Settings(tiny, tiny), config).kv_type
    index = load_validity(tiny, config)
    (passes,) = load_passes("openvino", engine_of(tiny, "openvino"), kv_type, 1)
    free = [Constraint(index, index.blocked(np.array([-1], np.int32)))] * batch
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (batch, PROMPT))
    ours, below = Remembering(passes), Remembering(passes)
    theirs = PerBeam(below)
    found = [
        HostExecutor(way, config, WIDTH, kv_type).answers(tokens, np.array(lengths), free, every_beam=True)
        for way in (ours, theirs)
    ]
    counts = [min(WIDTH, index.node_count(level)) for level in (1, 2)]
    assert counts[0] < counts[1], "beams become more"
    assert ours.shared_tokens == [batch * PROMPT] * 2
    assert below.shared_tokens == [batch * PROMPT * pass_size(count, WIDTH) for count in counts]
    np.testing.assert_allclose(below.logits.reshape(ours.logits.shape), ours.logits, atol=1e-5)
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(mine.paths, other.paths)
        np.testing.assert_allclose(mine.scores, other.scores, atol=1e-5)


@pytest.mark.parametrize("kv_type", ["f32", "bf16"])
def test_arithmetic_is_that_of_the_arena(tiny: Path, kv_type: str) -> None:
    config = load_config(tiny)
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    token *= 2 if kv_type == "bf16" else 4
    narrow, wide = (kv_bytes(config, PROMPT, width, kv_type) for width in (1, WIDTH))
    assert narrow.shared == wide.shared == PROMPT * token
    assert wide.unshared == WIDTH * (config.levels - 1) * token
    assert wide.copies == WIDTH * wide.shared
    layout = Layout(config, WIDTH, kv_type)
    memory = np.zeros(layout.slot_bytes, np.uint8)
    region, row = Region(memory, 1, PROMPT, ((0, 0, 0, 0),)), Row(memory, 1, PROMPT, 0)
    tensors = range(2 * config.num_hidden_layers)
    assert wide.shared == sum(layout.shared(region, n).nbytes for n in tensors)
    kept = sum(layout.unshared(row, n, u, WIDTH).nbytes for n in tensors for u in range(config.levels - 2))
    assert wide.unshared == kept + WIDTH * token, "the last pass's own token is not kept"


def test_one_small_cell(tiny: Path, tmp_path: Path) -> None:
    """Measured in processes of their own; how much is not asserted, but that there is something to see."""
    kv = kv_bytes(load_config(tiny), PROMPT, WIDTH, "f32")
    cell = as_cell(PROMPT, WIDTH, kv, {way: [measure(tiny, PROMPT, WIDTH, way)] for way in WAYS})
    assert cell["ours_mb"] > 0 and cell["per_beam_mb"] > 0
    plot_memory([cell, cell | {"beam_width": 64, "per_beam_mb": None}], tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_not_run_is_a_lower_bound() -> None:
    kv = KvBytes(shared=10**6, unshared=10**6, copies=9 * 10**9)
    run = as_cell(4, 8, kv, {"ours": [3 * 10**6, 2 * 10**6, 4 * 10**6], "per beam": [12 * 10**6]})
    assert (run["ours_mb"], run["ours_kv_mb"], run["ratio"]) == (3.0, 2.0, 4.0)
    assert run["spread_mb"] == {"ours": 2.0, "per beam": 0.0}
    bound = as_cell(4, 16, kv, {"ours": [6 * 10**6]})
    assert bound["per_beam_mb"] is None and bound["ratio"] == round(9001 / 6, 2)
    lines = table([run, bound]).splitlines()
    assert "not run: needs 9.0 GB" in lines[2] and ">= 1500.2" in lines[2] and "not run" not in lines[1]
    assert flat_in_bw([run, bound, run | {"prompt": 2, "ours_mb": 0.0}]) == 2.0


def test_over_what_took_no_memory_that_is_seen_there_is_no_ratio() -> None:
    kv = KvBytes(shared=10, unshared=10, copies=80)
    cell = as_cell(4, 8, kv, {"ours": [1000], "per beam": [10**6]})
    assert (cell["ours_mb"], cell["ratio"], flat_in_bw([cell])) == (0.0, None, None)
    assert table([cell]).splitlines()[1].split()[-1] == "-"


@pytest.mark.parametrize("made", [True, False])
def test_a_prompt_longer_than_the_model_reads_is_refused(
    tiny: Path,
    tmp_path: Path,
    made: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before a model is made for it."""
    for name in ("mock_artifact", "measure"):
        monkeypatch.setattr(peak_memory, name, lambda *_, name=name, **__: pytest.fail(f"it calls {name}"))
    artifact, most = (tiny, load_config(tiny).max_prompt) if made else (tmp_path / "mock", 3000)
    asked = ["bench", "memory", "--artifact", str(artifact), "--prompts", f"{most},{most + 1}"]
    assert main(asked) == 2
    said = f"prompts: holds {most + 1}, more tokens than {artifact.name} reads (accepted: at most {most})"
    assert said in capsys.readouterr().err
