"""The peers: which environment, worker and format of the weights each one takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.kit.machine import has_bf16, memory_limit
from perf.peers import envs
from perf.peers.cells import CONCURRENCY
from perf.peers.folder import PeerModel
from perf.peers.peer import FOLDER, Peer, Worker

HUGGING_FACE = "hugging_face"
# Commands of the environment `convert`.
CONVERSIONS = {
    "openvino": [
        "optimum-cli", "export", "openvino", "--model", "{hugging_face}",
        "--task", "text-generation-with-past", "--weight-format", "fp32", "{out}",
    ],
    "ctranslate2": [
        "ct2-transformers-converter", "--model", "{hugging_face}", "--output_dir", "{out}",
        "--quantization", "float32",
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One peer."""

    environment: str
    script: str
    format: str = HUGGING_FACE
    constrained: bool = False


PEERS = {
    "transformers": Entry("transformers", "worker_transformers.py"),
    "transformers-valid": Entry("transformers", "worker_transformers.py", constrained=True),
    "openvino-genai": Entry("openvino-genai", "worker_genai.py", "openvino"),
    "vllm": Entry("vllm", "worker_vllm.py"),
    "ctranslate2": Entry("ctranslate2", "worker_ctranslate2.py", "ctranslate2"),
}


def make_peer(
    name: str, model: PeerModel, folder: Path, *, threads: int, width: int, prompt: int, install: bool = True,
    prefix_cache: bool = False,
) -> Peer:  # fmt: skip
    """The peer for a model, its environment and format made unless there; `width` and `prompt` are the largest.

    `prefix_cache`: what it has computed of a prompt is kept for the next. Raises Refusal.
    """
    entry, environments = PEERS[name], folder / "envs"
    make = envs.install if install else envs.python_of
    python = make(environments, entry.environment)
    weights = model.folder / HUGGING_FACE
    if entry.format in CONVERSIONS:
        bin_folder = make(environments, "convert").parent
        command, *arguments = CONVERSIONS[entry.format]
        weights = model.converted(entry.format, [str(bin_folder / command), *arguments])
    options: dict[str, Any] = {
        "model": str(weights),
        "threads": threads,
        "levels": model.config.levels,
        "vocabulary": model.config.vocab_size,
        "width": width,
        "prompt": prompt,
        "requests": max(CONCURRENCY),
        "prefix_cache": prefix_cache,
        "dtype": "bfloat16" if has_bf16() else "float32",
    }
    if entry.constrained:
        options["items"] = str(model.folder / "items.npy")
    log = folder / "logs" / f"{name}-{model.name}.log"
    return Peer(name, Worker(python, FOLDER / entry.script, options, log, memory_limit()))
