"""sha256 of files, with progress where it takes long."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from genrec.errors import ArtifactError
from genrec.files import open_file


def sha256_of(path: Path, moved: Callable[[int], object]) -> str:
    """sha256 of a file; `moved` is told of the bytes as they are read. Raises ArtifactError when it cannot be read."""
    sha = hashlib.sha256()
    with open_file(path) as file:
        try:
            while block := file.read(1 << 20):
                sha.update(block)
                moved(len(block))
        except OSError as error:
            raise ArtifactError(path, f"cannot be read: {error.strerror}") from error
    return sha.hexdigest()


def hashed(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each with its sha256, as far as anyone reads on; a bar shows it. Raises ArtifactError."""
    from genrec.progress import counting  # where artifacts are only read, tqdm need not be

    paths = list(files)
    with counting("hashing", sum(path.stat().st_size for path in paths if path.is_file()), "B") as bar:
        for path in paths:
            yield path, sha256_of(path, bar.update)
