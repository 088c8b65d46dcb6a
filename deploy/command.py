"""The server's command line and environment, as pure functions: `ensembles.lint` checks what they give."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.ports import LOOPBACK, Ports
from deploy.server_files import ServerFiles, library_path

TOKEN_HEADER = "genrec-token"  # over gRPC: triton-grpc-protocol-genrec-token
GRPC_TOKEN_HEADER = f"triton-grpc-protocol-{TOKEN_HEADER}"
RESTRICTED = ("shared-memory", "model-repository", "model-config", "statistics", "trace", "logging")
# Grows by the megabyte when exceeded and never shrinks; a batch of 32 requests at beam width 1024 takes under
# 1 MB.
SHM_BYTES = 4 << 20
EXIT_TIMEOUT_S = 10


def command(
    files: ServerFiles, repository: Path, backends: Path, ports: Ports, token: str, prefix: str
) -> list[str]:
    """argv of tritonserver: loopback, no model control, everything but inference behind the token."""
    restricted = f"{','.join(RESTRICTED)}:{TOKEN_HEADER}={token}"
    return [
        str(files.binary),
        f"--id={prefix}",  # by which the probe knows that it talks to this server
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=none",
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--strict-readiness=true",
        "--model-load-thread-count=8",  # the steps spend their start importing, not computing
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={LOOPBACK}",
        f"--http-port={ports.http}",
        f"--http-restricted-api={restricted}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--grpc-restricted-protocol={restricted}",
        # As many as a loopback server may have in flight; fewer means allocating per request.
        "--grpc-infer-allocation-pool-size=64",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        "--metrics-config=summary_latencies=true",
        "--allow-gpu-metrics=false",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        "--pinned-memory-pool-byte-size=0",
        f"--backend-config=python,shm-region-prefix-name={prefix}triton-",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
        "--log-format=ISO8601",
    ]


def environment(files: ServerFiles, settings: Mapping[str, str], threads: int) -> dict[str, str]:
    """The server's environment: ours, the interpreter for the stubs, thread counts, GENREC_*.

    Several stubs share the cores and only engines have work for more than one, so BLAS and OpenMP get one
    thread; an engine takes its number from GENREC_THREADS.
    """
    source = Path(__file__).resolve().parent.parent
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": library_path(files),
        # The wheel's stub finds site-packages through the first python3 on PATH; later stubs read PYTHONPATH.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": str(threads or os.cpu_count() or 1),
        "PYTHONUNBUFFERED": "1",
        **settings,
    }
