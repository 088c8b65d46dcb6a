"""What is in a pool now, and what happened since it was made."""

from __future__ import annotations

from genrec.pool import coldest, user_rows
from genrec.pool.mapping import HITS, PoolTable

COUNTERS = ("hits", "misses", "evictions", "tokens", "item_hits", "item_misses", "item_evictions",
            "leases_used", "leases_unused")  # fmt: skip


def usage_of(table: PoolTable) -> dict[str, int]:
    """Entries of users and their bytes, items, and the counters of all processes; of a table that is locked."""
    taken = table.entries[user_rows.used_entries(table)]
    now = {
        "entries": len(taken),
        "bytes": int(taken[:, user_rows.SIZE].sum()),
        "items": int((table.row_state == coldest.READY).sum()),
    }
    return now | dict(zip(COUNTERS, table.header[HITS : HITS + len(COUNTERS)].tolist(), strict=True))
