"""On which address a server may listen: on others than loopback, a release without the known holes (H9) alone."""

from __future__ import annotations

import logging
import os

from deploy.ports import LOOPBACK
from genrec.errors import InputError

RELEASE = (
    "NVIDIA_TRITON_SERVER_VERSION"  # of Triton's container, as year.month; the embedded server sets none
)
SAFE_FROM = (25, 8)
HOLES = "CVE-2025-23310, -23316, -23317, -23319, -23320 and -23334"
EVERYWHERE = "0.0.0.0"  # the launcher itself asks over loopback, so no other address will do
log = logging.getLogger("genrec.serve")


def check_address(address: str, i_know: bool) -> None:
    """Refuse an address that others can reach while the server can be taken over. Raises InputError.

    `i_know` makes the refusal a warning.
    """
    if address not in (LOOPBACK, EVERYWHERE):
        raise InputError("address", f"is {address!r}", f"{LOOPBACK}, or {EVERYWHERE} for all of the machine")
    if address == LOOPBACK or _release() >= SAFE_FROM:
        return
    danger = f"whoever reaches a Triton before 25.08 can run code in it ({HOLES})"
    if not i_know:
        limit = f"{LOOPBACK}, or Triton's container from 25.08 on; --i-know all the same: {danger}"
        raise InputError("address", f"is {address}", limit)
    log.warning("listening on %s: %s", address, danger)


def _release() -> tuple[int, ...]:
    """(year, month) of the container's Triton; (0,) where there is none."""
    parts = os.environ.get(RELEASE, "").split(".")
    return tuple(int(part) for part in parts[:2]) if all(part.isdecimal() for part in parts) else (0,)
