"""Start the container's tritonserver on an artifact's engines, or say why not. NOT RUN YET: see verify_tensorrt.sh.

    python3 -m deploy.tensorrt.launch /artifact [--beam-width 256] [--http-port 8000] [--grpc-port 8001]

Loopback, as everywhere: run the container with --network host behind a proxy, or change the address knowingly.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from build.tensorrt.profiles import MAX_BATCH
from deploy.command import command, environment
from deploy.ports import Ports
from deploy.server_files import find_server
from deploy.tensorrt import manifest, place
from ensembles.render_tensorrt import repository
from ensembles.tensorrt import Plan
from ensembles.tensorrt_rank import ensembles_of
from genrec import leftovers
from genrec.artifact import load_config
from genrec.catalogue import agreement
from genrec.catalogue.versions import served_id, to_start_with
from genrec.errors import ArtifactError
from genrec.manifest import verify
from genrec.models.config import ModelConfig
from genrec.settings import Settings

PYTHON_MODELS = Path(__file__).resolve().parents[2] / "model_repository"
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
IN_FLIGHT = 2  # batches: one is prefilled while another is decoded
LEAST = 256 << 20  # of pinned memory, Triton's own default


class MemoryPools(NamedTuple):
    """Bytes that Triton sets aside for tensors between models: on the GPU, and in pinned memory of the host."""

    gpu: int
    pinned: int


def memory_pools(config: ModelConfig, kv_type: str, beam_width: int) -> MemoryPools:
    """What the largest batches of the profiles take: where a pool is too small, Triton goes to the host in silence.

    On the GPU lie the prompts' KV, the unshared KV of the level before and of this one, and logits. Logits go on to
    beam search, on the host, through pinned memory.
    """
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * BYTES[kv_type]
    earlier = max(config.levels - 2, 0)  # unshared tokens of a beam that a later decode reads
    kv = MAX_BATCH * token * (config.max_prompt + 2 * earlier * beam_width)
    logits = MAX_BATCH * beam_width * max(config.codebook_sizes) * 4
    return MemoryPools(IN_FLIGHT * (kv + logits), max(IN_FLIGHT * logits, LEAST))


def arguments_for_gpu(argv: list[str], plugin: Path, pools: MemoryPools) -> list[str]:
    """The default server's command line, with what plans need: the plugin, GPU memory between models, pinned memory."""
    kept = [a for a in argv if not a.startswith("--pinned-memory-pool-byte-size=")]
    return [
        *kept,
        f"--backend-config=tensorrt,plugins={plugin}",
        f"--cuda-memory-pool-byte-size=0:{pools.gpu}",
        f"--pinned-memory-pool-byte-size={pools.pinned}",
    ]


def prepare(artifact: Path, run_dir: Path, here: manifest.Place, beam_width: int) -> tuple[Path, MemoryPools]:
    """The repository of an artifact whose files and engines are what they should be, and its memory. ArtifactError."""
    verify(artifact)
    plans = artifact / "engines" / "tensorrt"
    kv_type = manifest.check(plans, here)
    out = run_dir / "model_repository"
    shutil.rmtree(out, ignore_errors=True)
    ensembles = ensembles_of(artifact, kv_type)
    wanted = {each.name for of in ensembles for each in of.models if isinstance(each, Plan)}
    if missing := sorted(name for name in wanted if not (plans / f"{name}.plan").is_file()):
        raise ArtifactError(plans / f"{missing[0]}.plan", "is missing; build the engines again")
    repository(ensembles, plans, PYTHON_MODELS, out)
    return out, memory_pools(load_config(artifact, "tensorrt"), kv_type, beam_width)


def main() -> None:
    """Command line; becomes tritonserver."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-width", type=int, default=256)
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    options = parser.parse_args()
    run_dir, files = Path(tempfile.mkdtemp(prefix="genrec-run-")), find_server()
    models, pools = prepare(options.artifact, run_dir, place.here(), options.beam_width)
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    backends = files.library.parent.parent
    leftovers.remove_of_the_dead()
    prefix = leftovers.own_prefix()  # of the server too: it takes this process over
    served = served_id(options.artifact)
    argv = command(files, models, backends, ports, secrets.token_hex(16), prefix, served=served)
    folder = leftovers.SHM / f"{prefix}{leftovers.SWAP}"
    agreement.create(folder, options.artifact, to_start_with(options.artifact))
    settings = Settings(options.artifact, run_dir / "no-arena", options.beam_width, "tensorrt", swap=folder)
    argv = arguments_for_gpu(argv, place.PLUGIN, pools)
    os.execve(files.binary, argv, environment(files, settings.environment(), 0))


if __name__ == "__main__":
    main()
