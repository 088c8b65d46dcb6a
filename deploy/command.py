"""The server's command line and environment, as pure functions; tests lint what they give."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from deploy.ports import LOOPBACK, Ports
from deploy.private import PrivateFolder
from deploy.server_files import ServerFiles, library_path
from genrec.cores import usable_cores

TOKEN_HEADER = "genrec-token"  # over gRPC: triton-grpc-protocol-genrec-token
GRPC_TOKEN_HEADER = f"triton-grpc-protocol-{TOKEN_HEADER}"
CONTROL_HEADER = "genrec-control"
OPENED = ("model-config", "statistics")  # by the token, which is for people and benchmarks
# By a secret that nobody is told: with these one runs code in the server, or writes to any file of its user.
CONTROLLED = ("shared-memory", "model-repository", "trace", "logging")
# Grows by the megabyte when exceeded and never shrinks; a batch of 32 requests at beam width 1024 takes under
# 1 MB.
SHM_BYTES = 4 << 20
EXIT_TIMEOUT_S = 10
# Triton 2.51 asks them for a collector of this machine too, whatever `no_proxy` says.
PROXIES = ("http_proxy", "all_proxy")
# Of spans on their way to the collector; Triton's own 5 s are long for somebody who waits.
TRACE_DELAY_MS = 200


def command(
    files: ServerFiles,
    repository: Path,
    backends: Path,
    ports: Ports,
    token: str,
    prefix: str,
    control: str = "",
    address: str = LOOPBACK,
    trace_url: str = "",
    served: str = "",
) -> list[str]:
    """argv of tritonserver: loopback unless told otherwise, everything but inference behind secrets.

    Its name, which its metadata tell, is `prefix` and what is `served`, as `served_id` says it.

    `control` is the supervisor's own, with which it loads one model again; without it no model can be loaded, and what
    it would open is closed for good.
    """
    restricted = (
        f"{','.join(OPENED)}:{TOKEN_HEADER}={token}",
        f"{','.join(CONTROLLED)}:{CONTROL_HEADER}={control or secrets.token_urlsafe(24)}",
    )
    mode = ["--model-control-mode=explicit", "--load-model=*"] if control else ["--model-control-mode=none"]
    return [
        str(files.binary),
        f"--id={prefix}{served}",  # by which the probe knows that it talks to this server
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        *mode,
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--strict-readiness=true",
        "--model-load-thread-count=16",  # all at once: the slowest should not be the last to begin
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={address}",
        f"--http-port={ports.http}",
        *(f"--http-restricted-api={rule}" for rule in restricted),
        f"--grpc-address={address}",
        f"--grpc-port={ports.grpc}",
        *(f"--grpc-restricted-protocol={rule}" for rule in restricted),
        # As many as a loopback server may have in flight; fewer means allocating per request.
        "--grpc-infer-allocation-pool-size=64",
        f"--metrics-address={address}",
        f"--metrics-port={ports.metrics}",
        "--metrics-config=summary_latencies=true",
        "--allow-gpu-metrics=false",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        "--pinned-memory-pool-byte-size=0",
        f"--backend-config=python,shm-region-prefix-name={prefix}triton-",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
        "--log-format=ISO8601",
        *_traces(trace_url),
    ]


def _traces(url: str) -> list[str]:
    """Requests that bring a `traceparent` are traced to the OpenTelemetry collector at `url`, no others (rate 0)."""
    if not url:
        return []
    settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0")
    exporter = (f"opentelemetry,url={url}", f"opentelemetry,bsp_schedule_delay={TRACE_DELAY_MS}")
    return [f"--trace-config={each}" for each in (*settings, *exporter)]


def environment(
    files: ServerFiles, settings: Mapping[str, str], threads: int, private: PrivateFolder | None = None
) -> dict[str, str]:
    """The server's environment: ours, the interpreter for the stubs, thread counts, GENREC_*.

    Several stubs share the cores and only engines have work for more than one, so BLAS and OpenMP get one
    thread; an engine takes its number from GENREC_THREADS.
    """
    source = Path(__file__).resolve().parent.parent
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    near = urlsplit(settings.get("GENREC_TRACE_URL", "")).hostname in (LOOPBACK, "localhost", "::1")
    proxies = PROXIES if near else ()
    interpreter = Path(sys.executable).parent
    if private and (python := private.name(Path(sys.prefix), "python")) != Path(sys.prefix):
        interpreter = python / "bin"
    return {
        **{name: value for name, value in os.environ.items() if name.lower() not in proxies},
        "LD_LIBRARY_PATH": library_path(files),
        # The wheel's stub finds site-packages through the first python3 on PATH; later stubs read PYTHONPATH.
        "PATH": os.pathsep.join([str(interpreter), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(paths),
        **({"TMPDIR": str(private.temporary)} if private else {}),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": str(threads or usable_cores()),
        "PYTHONUNBUFFERED": "1",
        **settings,
    }
