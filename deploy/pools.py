"""The KV pools of the servers that run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy import leftovers
from deploy.switch import servers_of
from genrec.engine.kept_prompts import keeps_prompts
from genrec.settings import Settings

POOL = "pool"  # the folder of a server's pool, beside that in which its processes agree


def with_pool(settings: Settings, artifact: Path, ensembles: Sequence[str], pool: Path) -> Settings:
    """The settings with the folder of a pool, where one of these ensembles reads it; rankings alone keep items."""
    if {"rank", "recommend_and_rank", "pre_infer"}.intersection(ensembles):
        return replace(settings, pool=pool)
    if {"recommend", "recommend_draft"}.intersection(ensembles) and keeps_prompts(
        replace(settings, artifact=artifact)
    ):
        return replace(settings, pool=pool, pool_item_mb=0)
    return settings


def pools_of(artifact: Path) -> list[Path]:
    """Of the servers that serve the artifact and rank."""
    beside = (Path(str(folder).removesuffix(leftovers.SWAP) + POOL) for folder in servers_of(artifact))
    return [folder for folder in beside if folder.is_dir()]
