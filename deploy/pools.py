"""The KV pools of the servers that run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deploy.instructions import NODES, instruction_set
from deploy.switch import servers_of
from genrec import leftovers
from genrec.engine.kept_prompts import keeps_prompts
from genrec.errors import InputError
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


def disk_of_each(settings: Settings, instances: Mapping[str, int]) -> Settings:
    """The settings of one process: those that score candidates have a second tier each, and one bound together.

    `instances` are processes of a model, by its name. Raises InputError.
    """
    processes = instances.get("score_candidates", 1)
    if not settings.pool_disk or processes == 1:
        return settings
    if settings.pool_disk_mb < processes:
        raise InputError(
            "pool_disk_mb",
            f"is {settings.pool_disk_mb} for {processes} processes of score_candidates",
            f"at least {processes}",
        )
    return replace(settings, pool_disk_mb=settings.pool_disk_mb // processes)


def pools_of(artifact: Path) -> list[Path]:
    """Of the servers that serve the artifact and rank."""
    beside = (Path(str(folder).removesuffix(leftovers.SWAP) + POOL) for folder in servers_of(artifact))
    return [folder for folder in beside if folder.is_dir()]


def swap_of(pool: Path) -> Path:
    """Where the processes of a pool's server agree on a catalogue version."""
    return Path(str(pool).removesuffix(POOL) + leftovers.SWAP)
