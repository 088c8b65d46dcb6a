"""What the processes of a server share in /dev/shm."""

from __future__ import annotations

import os

from deploy import command
from deploy.launch import NoRoom
from genrec import leftovers
from genrec.artifact import load_config
from genrec.catalogue import agreement
from genrec.catalogue.versions import to_start_with
from genrec.cores import memory_left
from genrec.engine.load import load_layout
from genrec.engine.load_ranker import create_pool, pool_sizes
from genrec.kv.arena import Arena
from genrec.pool.mapping import file_bytes
from genrec.settings import Settings

LIMITED = "which the limit of memory leaves, as of a container: /dev/shm counts"


def prepare(settings: Settings, slots: int, processes: int) -> None:
    """Make it anew, at every start: the folder in which processes agree on a catalogue version, where there are slots
    the KV arena, and for rankings the pool, sized for the artifact, target and beam width. Raises NoRoom.
    """  # fmt: skip
    assert settings.swap is not None
    config = load_config(settings.artifact, settings.target)
    slot_bytes = load_layout(settings, config).slot_bytes
    pool_bytes = file_bytes(*pool_sizes(settings, config)) if settings.pool else 0
    _check_room(slots * slot_bytes, pool_bytes, processes * command.SHM_BYTES)
    agreement.create(settings.swap, settings.artifact, to_start_with(settings.artifact))
    if slots:
        Arena.create(settings.arena, slots, slot_bytes).close()
    if settings.pool:
        create_pool(settings, config)


def _check_room(arena_bytes: int, pool_bytes: int, triton_bytes: int) -> None:
    """Ask before anything is made: a process that finds /dev/shm full at work is killed."""
    wanted = {
        "the KV arena of recommend_staged (--ensembles without it needs none)": arena_bytes,
        "the pool (--pool-user-mb, --pool-item-mb)": pool_bytes,
        "Triton's processes": triton_bytes,
    }
    found = os.statvfs(leftovers.SHM)
    free, why = min((found.f_bavail * found.f_frsize, "which it has free"), (memory_left(), LIMITED))
    free_mib, wanted_mib = free >> 20, (sum(wanted.values()) >> 20) + 1
    if wanted_mib > free_mib:
        parts = ", ".join(f"{size >> 20} MiB for {what}" for what, size in wanted.items() if size)
        raise NoRoom(str(leftovers.SHM), f"needs {wanted_mib} MiB: {parts}", f"{free_mib} MiB, {why}")
