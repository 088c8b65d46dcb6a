"""What this container is: read off its libraries, not off its labels."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from deploy.tensorrt.manifest import Place
from genrec.errors import ArtifactError
from genrec.manifest import digest_file

PLUGIN = Path("/opt/genrec/libgenrec_plugin.so")  # as deploy/Dockerfile puts it
TAG = "GENREC_IMAGE_TAG"


def tensorrt_version(library: str = "") -> str:
    """`major.minor.patch` of libnvinfer. Raises ArtifactError when there is none."""
    for name in [library] if library else [f"libnvinfer.so.{n}" for n in (12, 11, 10)]:
        try:
            number = int(ctypes.CDLL(name).getInferLibVersion())
        except (OSError, AttributeError):
            continue
        return version_of(number)
    raise ArtifactError(library or "libnvinfer.so", "cannot be loaded: this is no TensorRT container")


def version_of(number: int) -> str:
    """NV_TENSORRT_VERSION as text: 10 000 a major, 100 a minor, since TensorRT 10."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def compute_capability() -> str:
    """Of the first GPU. Raises ArtifactError when there is none."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ArtifactError("nvidia-smi", f"names no GPU: {error}") from error
    return said.splitlines()[0].strip()


def here() -> Place:
    """This container and GPU; loads the plugin on the way, because Triton only logs when it cannot. ArtifactError."""
    version = tensorrt_version()
    try:
        ctypes.CDLL(str(PLUGIN), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ArtifactError(PLUGIN, f"cannot be loaded: {error}") from error
    return Place(os.environ.get(TAG, "unknown"), version, compute_capability(), digest_file(PLUGIN))
