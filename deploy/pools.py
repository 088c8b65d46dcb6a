"""The KV pools of the servers that run on this machine."""

from __future__ import annotations

from pathlib import Path

from deploy import leftovers
from deploy.switch import servers_of

POOL = "pool"  # the folder of a server's pool, beside that in which its processes agree


def pools_of(artifact: Path) -> list[Path]:
    """Of the servers that serve the artifact and rank."""
    beside = (Path(str(folder).removesuffix(leftovers.SWAP) + POOL) for folder in servers_of(artifact))
    return [folder for folder in beside if folder.is_dir()]
