"""The metrics of what a pool holds."""

from __future__ import annotations

from genrec import metrics
from genrec.pool.pool import Pool


def count_pool(pool: Pool) -> None:
    """Set them, as every process that has the pool does; one whose table is not to be had counts as before."""
    usage = pool.usage()
    if usage is None:
        return
    metrics.POOL_BYTES.set(usage["bytes"])
    for kind, entries, evicted in (("users", "entries", "evictions"), ("items", "items", "item_evictions")):
        metrics.POOL_ENTRIES.set(usage[entries], kind=kind)
        metrics.POOL_EVICTED.set(usage[evicted], kind=kind)
    for end in ("used", "unused"):
        metrics.POOL_LEASES.set(usage[f"leases_{end}"], end=end)
