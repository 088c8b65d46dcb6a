"""A stage in steps, each a file: what was ended before it resumes after its last whole step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from genrec.errors import GenrecError

KEY = "key"


class Steps:
    """The files of a stage's steps in a folder of its own, which goes with the stage.

    A process that was ended at any point leaves whole steps, and at most one that is partial, which is made again. So
    does one that had no room or no memory. An error of the data takes all away: they will be other data.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """`key` stands for all that the steps follow from; steps of another key are removed."""
        self.folder, self.key = folder, key

    def __enter__(self) -> Steps:
        known = self.folder / KEY
        if not known.is_file() or known.read_text() != self.key:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            known.write_text(self.key)
        self.scratch.mkdir(exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        whole = {path.name for path in self.folder.iterdir()} - {KEY}
        if kind is None or issubclass(kind, GenrecError) or not whole:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def scratch(self) -> Path:
        """A folder for what is in the making."""
        return self.folder / "partial"

    def make(self, name: str, work: Callable[[Path], object]) -> Path:
        """The file `name`, which `work` writes unless it is there."""
        path, partial = self.folder / name, self.scratch / name
        if not path.exists():
            work(partial)
            os.replace(partial, path)
        return path
