"""What a step's process imports: every start of a server waits for it, in a dozen processes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_NUMBA = (
    "encode_history",
    "encode_candidates",
    "encode_prefix",
    "encode_events",
    "encode_events_ahead",
    "prefill",
    "prefill_draft",
    "rank_lookup",
)


def _imported_by(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("step", WITHOUT_NUMBA)
def test_a_step_without_kernels_does_not_import_numba(step: str) -> None:
    assert "numba" not in _imported_by(f"genrec.steps.{step}")


def test_a_step_with_kernels_imports_numba() -> None:
    assert "numba" in _imported_by("genrec.steps.validity_lookup")


@pytest.mark.parametrize("module", ["genrec.engine.openvino", "genrec.engine.blobs", "build.openvino.graphs"])
def test_openvino_comes_without_what_reports_its_import(module: str) -> None:
    imported = _imported_by(module)
    assert "openvino" in imported
    assert not {name for name in imported if name.startswith(("openvino_telemetry", "openvino.tools.ovc"))}
