"""What the processes of a server share in /dev/shm."""

from __future__ import annotations

import os

from deploy import command, leftovers
from deploy.launch import NoRoom
from genrec.artifact import load_config
from genrec.catalogue import agreement
from genrec.catalogue.versions import read_current
from genrec.engine.load import load_layout
from genrec.engine.load_ranker import create_pool
from genrec.kv.arena import Arena
from genrec.settings import Settings


def prepare(settings: Settings, slots: int, processes: int) -> None:
    """Make it anew, at every start: the folder in which processes agree on a catalogue version, where there are slots
    the KV arena, and for rankings the pool, sized for the artifact, target and beam width. Raises NoRoom.
    """  # fmt: skip
    assert settings.swap is not None
    config = load_config(settings.artifact)
    slot_bytes = load_layout(settings, config).slot_bytes
    pool_bytes = settings.pool_user_mb + settings.pool_item_mb << 20 if settings.pool else 0
    _check_room(slots * slot_bytes, pool_bytes, processes * command.SHM_BYTES)
    agreement.create(settings.swap, settings.artifact, read_current(settings.artifact).version)
    if slots:
        Arena.create(settings.arena, slots, slot_bytes).close()
    if settings.pool:
        create_pool(settings, config)


def _check_room(arena_bytes: int, pool_bytes: int, triton_bytes: int) -> None:
    """Ask before anything is made: a process that finds /dev/shm full at work is killed."""
    free = os.statvfs(leftovers.SHM)
    free_mib, wanted_mib = (
        free.f_bavail * free.f_frsize >> 20,
        (arena_bytes + pool_bytes + triton_bytes >> 20) + 1,
    )
    pool = f", the pool for {pool_bytes >> 20} MiB" if pool_bytes else ""
    if wanted_mib > free_mib:
        raise NoRoom(
            "arena_slots" if arena_bytes else "pool_user_mb",
            f"ask for {arena_bytes >> 20} MiB{pool}, and Triton's processes for {triton_bytes >> 20} MiB",
            f"{free_mib} MiB, which {leftovers.SHM} has free: fewer slots, a smaller pool, or a larger {leftovers.SHM}",
        )
