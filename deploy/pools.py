"""The KV pools of the servers that run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy import leftovers
from deploy.instructions import NODES, instruction_set
from deploy.switch import servers_of
from genrec.engine.kept_prompts import keeps_prompts
from genrec.rank.kinds import NO_RANKER
from genrec.settings import Settings

POOL = "pool"  # the folder of a server's pool, beside that in which its processes agree


def with_pool(settings: Settings, artifact: Path, ensembles: Sequence[str], pool: Path) -> Settings:
    """The settings with the folder of a pool, where one of these ensembles reads it.

    Where none ranks, the steps are told so: nobody would read items, nor prompts of users that are not named.
    """
    if {"rank", "recommend_and_rank", "pre_infer"}.intersection(ensembles):
        return replace(settings, pool=pool)
    of_files = replace(settings, artifact=artifact)
    asks = {"recommend", "recommend_draft"}.intersection(ensembles)
    if asks and keeps_prompts(of_files) and instruction_set(of_files) != NODES:
        return replace(settings, pool=pool, pool_item_mb=0, ranker=NO_RANKER)
    return settings


def pools_of(artifact: Path) -> list[Path]:
    """Of the servers that serve the artifact and rank."""
    beside = (Path(str(folder).removesuffix(leftovers.SWAP) + POOL) for folder in servers_of(artifact))
    return [folder for folder in beside if folder.is_dir()]
