"""Groups of items by name: tensors carry numbers (hazard H8), so that every name has one."""

from __future__ import annotations

import hashlib

MOST = 2**63 - 1


def group_number(name: str | int) -> int:
    """What a request says for a group: a whole number stands for itself, any other name for 63 bits of its sha256."""
    if isinstance(name, int):
        return name
    if name.isascii() and name.isdecimal() and int(name) <= MOST:
        return int(name)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
