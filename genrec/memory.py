"""Memory that only the start of a process needed, given back to the kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path

MAPPED = (".blob", ".bin")  # OpenVINO's compiled and saved graphs


def give_back() -> None:
    """Let go of freed heap, and of the pages of compiled graphs: OpenVINO maps their weights and then computes with a
    copy laid out anew, so that each would stay in memory twice. A page that is wanted again is read from its file.
    """  # fmt: skip
    libc = ctypes.CDLL(None)
    for start, end in _mappings():
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 4)  # MADV_DONTNEED
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def _mappings() -> list[tuple[int, int]]:
    """Where read-only pages of MAPPED files lie."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if rights.startswith("r-") and path and path[0].endswith(MAPPED):
            start, end = (int(address, 16) for address in addresses.split("-"))
            found.append((start, end))
    return found
