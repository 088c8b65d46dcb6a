"""A stage of an artifact, made where it is not done or no longer good; the manifest says what it was made from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from genrec.manifest import is_good, making, read, record


def train_stage(
    artifact: Path, name: str, key: str, files: Iterable[str], work: Callable[[Path], dict[str, Any]]
) -> None:  # fmt: skip
    """A stage that writes `files` of `model/`, and goes on from `.training/<name>` where one of its key was ended.

    Of processes that torchrun started, rank 0 keeps the manifest.
    """
    from genrec.catalogue.files import CATALOGUE
    from genrec.catalogue.items import MEANING, Catalogue
    from training.further import LEARNT
    from training.launch import torchrun_rank

    of_stage = artifact / ".training" / name
    if torchrun_rank():
        if not is_good(artifact, name, key):
            work(of_stage / key[:16])
        return
    model = artifact / "model"

    def trained() -> dict[str, Any]:
        meaning = Catalogue.load(artifact / CATALOGUE, titles=False).meaning  # another may come meanwhile
        if learnt := read(artifact).get(name, {"facts": {}})["facts"].get(LEARNT):
            files = "a file" if len(learnt) == 1 else f"{len(learnt)} files"
            print(f"{name}: is trained anew, without the events of {files} that it had learnt by --events")
        return {**work(of_stage / key[:16]), MEANING: meaning}

    make_stage(artifact, name, key, trained, lambda: (model / each for each in files))
    shutil.rmtree(of_stage / key[:16], ignore_errors=True)  # and not what another training may go on with
    with suppress(OSError):
        of_stage.rmdir()


def make_stage(
    artifact: Path, name: str, key: str, work: Callable[[], dict[str, Any]], outputs: Callable[[], Iterable[Path]]
) -> None:  # fmt: skip
    """Do `work` where its `outputs` are not those of `key` already; the manifest keeps the facts that it gives.

    Raises what `work` does, and ArtifactError.
    """
    begun = time.monotonic()
    with _folder(artifact), making(artifact, name):
        if is_good(artifact, name, key):
            print(f"{name}: still good")
            return
        facts = work()
        record(artifact, name, key, outputs(), facts)
    print(f"{name}: done in {time.monotonic() - begun:.1f} s")


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Make it, and what it lies in; what was made here goes again where something fails and nothing is in it."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something is in it
            for each in made:
                each.rmdir()
        raise
