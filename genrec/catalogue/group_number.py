"""Groups of items by name: tensors carry numbers (hazard H8), so that every name has one."""

from __future__ import annotations

import hashlib
import unicodedata

MOST = 2**63 - 1


def group_name(name: str) -> str:
    """The one spelling (NFC) of names that look the same: an accent is a part of its letter, or a character of its own,
    as macOS writes file names.
    """
    return unicodedata.normalize("NFC", name)


def group_number(name: str | int) -> int:
    """What a request says for a group: a whole number of 0 to `MOST` stands for itself, any other name for 63 bits of
    the sha256 of its one spelling. What is not Unicode, as an argument of a command line may be, has one too, and is no
    group's.
    """
    text = group_name(str(name))
    digits = text.lstrip("0") or text[-1:]  # Python reads no more than some thousand digits
    if text.isascii() and text.isdecimal() and len(digits) <= len(str(MOST)) and int(digits) <= MOST:
        return int(digits)
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big") >> 1


def unknown_group(asked: int | str) -> str:
    """What is wrong with a number, or the name that it stands for, which no group of a catalogue has."""
    return f"names {asked}, which is no group of the catalogue"
