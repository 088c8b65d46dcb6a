"""The folder of one start in /dev/shm: everything that Triton reads lies in it under a plain name.

The Python backend starts its processes through a shell that is given paths unquoted, and the interpreter in them takes
file names for ASCII; so a space or an umlaut in the path of a checkout, a run folder or an artifact ended the start.
What they write for a moment goes there too (each server left a python_env_* in the temporary folder). The folder's name
begins with the server's prefix: it goes when the server does, and with the leftovers of a killed launcher.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.server_files import ServerFiles, lay_out_backends
from genrec import leftovers


@dataclass(frozen=True)
class PrivateFolder:
    """Where things are, there or not."""

    root: Path

    @classmethod
    def of(cls, prefix: str) -> PrivateFolder:
        """The folder of the server with that prefix."""
        return cls(leftovers.SHM / f"{prefix}private")

    @property
    def backends(self) -> Path:
        """For --backend-directory."""
        return self.root / "backends"

    @property
    def models(self) -> Path:
        """For --model-repository: a copy, so that a model can be marked as changed and loaded again."""
        return self.root / "models"

    @property
    def temporary(self) -> Path:
        """For TMPDIR."""
        return self.root / "tmp"

    def name(self, path: Path, link: str) -> Path:
        """The path itself where it is ASCII, else that of a link to it."""
        return path if str(path).isascii() else self.root / link

    def lay_out(self, files: ServerFiles, artifact: Path) -> None:
        """Make all but the models."""
        self.root.mkdir(mode=0o700)
        self.temporary.mkdir()
        lay_out_backends(files, self.backends)
        for path, link in ((artifact, "artifact"), (Path(sys.prefix), "python")):
            if self.name(path, link) != path:
                (self.root / link).symlink_to(path)

    def mark_changed(self, model: str) -> None:
        """Let Triton take a model for changed: a load of it then makes new processes for it."""
        os.utime(self.models / model / "1" / "model.py")
