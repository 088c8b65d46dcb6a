"""From nothing to an artifact that can be served: every stage that is not done or no longer good.

data -> tokenise -> train -> export -> build; `manifest.json` says what each was made from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.stage import make_stage, train_stage
from genrec.errors import ArtifactError, InputError
from genrec.manifest import (
    OF,
    anew,
    check_inputs,
    digest_file,
    read,
    recorded,
    stage_key,
)


@dataclass(frozen=True)
class How:
    """How a model is trained: `threads` of all ranks together, 0 all cores; with the weights so far after `minutes`."""

    seed: int = 0
    threads: int = 0
    minutes: float | None = None
    ranks: int = 1
    device: str = "cpu"

    def on_ranks(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What `work(world, *arguments)` gave on rank 0. Raises RankLost, and what a rank raised."""
        from training.launch import on_ranks

        return on_ranks(self.ranks, work, *arguments, threads=self.threads, device=self.device)


PLAIN = How()


def make_data(
    artifact: Path, source: str | None, interactions: Path | None = None, items: Path | None = None,
    cluster: str | None = None, users: Path | None = None, semantic_ids: Path | None = None,
) -> None:  # fmt: skip
    """`histories.parquet`, `items.parquet`, and `users.parquet`, from a named set, a folder or the user's files, whose
    items have `semantic_ids`, if these are given.
    """
    from genrec.rank.user_features import USERS
    from training.data.writing import FORM
    from training.stages import prepare

    # Its semantic IDs are what its model was trained with: with others nothing could be done with it, ever.
    check_ours(artifact, "another artifact; histories of this model come by `genrec import --interactions`")
    named = [path for path in (interactions, items, users, source and Path(source)) if path]
    given = [path for path in named if path.is_file()]
    for folder in filter(Path.is_dir, named):
        given += sorted(
            path for path in folder.rglob("*") if path.is_file() and not _made_in(artifact, path, folder)
        )
    key = stage_key({"source": source, "form": FORM}, given)

    def work() -> dict[str, Any]:
        notes = prepare(artifact, source, interactions, items, None, cluster, users, semantic_ids, key)
        for note in notes:
            print(f"  {note}")
        return {"notes": notes}

    def made() -> Iterator[Path]:
        files = [artifact / name for name in ("histories.parquet", "items.parquet", "source.json", USERS)]
        return filter(Path.exists, files)

    make_stage(artifact, "data", key, work, made)


def _made_in(artifact: Path, path: Path, folder: Path) -> bool:
    """Whether a file of the data set's `folder` is one of the artifact, where that lies in there: it changes with every
    run, and is none of the data.
    """
    return artifact.resolve() in path.resolve().parents and artifact.resolve() != folder.resolve()


def make_catalogue(
    artifact: Path, sizes: tuple[int, ...] | None = None, semantic_ids: Path | None = None
) -> None:
    """`catalogue.parquet`: semantic IDs trained here, or published ones."""
    from training.stages import recipe, tokenise

    of_data = [artifact / name for name in ("histories.parquet", "items.parquet")]
    given = [*of_data, *([semantic_ids] if semantic_ids else [])]
    key = stage_key({"sizes": sizes, "recipe": recipe(artifact).as_json()}, given)

    def work() -> dict[str, Any]:
        of = {path.name: recorded(artifact, path.name) for path in of_data}  # others may come meanwhile
        notes = tokenise(artifact, sizes, semantic_ids)
        for note in notes:
            print(f"  {note}")
        return {"notes": notes, OF: of}

    make_stage(artifact, "tokenise", key, work,
           lambda: (artifact / n for n in ("catalogue.parquet", "codebooks.safetensors")))  # fmt: skip


def make_model(artifact: Path, how: How = PLAIN, changes: Mapping[str, Any] | None = None) -> None:
    """`model/`, trained by the recipe of the data with `changes`; an ended training goes on where it stood."""
    from training.generator.recipes import OF_DATA
    from training.recipe_file import changed
    from training.stages import CODEBOOKS, recipe, train

    check_ours(artifact)
    check_inputs(artifact, "tokenise")
    chosen = changed(recipe(artifact), changes or {}, OF_DATA)
    settings = {"seed": how.seed, "minutes": how.minutes, "recipe": chosen.as_json()}
    books = [path for path in (artifact / CODEBOOKS,) if path.exists()]
    for path in books:  # a kill may have left new ones beside a catalogue of before
        if recorded(artifact, path.name) not in (None, digest_file(path)):
            problem = f"is not the file that stage `tokenise` made{anew(artifact, 'tokenise')}"
            raise ArtifactError(path, problem)
    key = stage_key(settings, [artifact / "histories.parquet", artifact / "catalogue.parquet", *books])
    train_stage(
        artifact, "train", key, ("config.json", "model.safetensors"),
        lambda state: how.on_ranks(train, artifact, chosen, state, how.seed, how.minutes),
    )  # fmt: skip


def make_draft(artifact: Path, how: How = PLAIN, changes: Mapping[str, Any] | None = None) -> None:
    """`model/draft.*`: a draft head, alone on the generator as it is, or trained together with it."""
    from genrec.nn.checkpoint import generator_digest
    from training.further import LEARNT
    from training.generator.draft import DraftSettings, draft_artifact
    from training.recipe_file import changed

    check_generator(artifact)
    chosen = changed(DraftSettings(), changes or {})
    if chosen.joint:
        check_ours(artifact)
    # The generator's own stage stands for its weights, with what it learnt since: those change when both learn.
    trained = read(artifact).get("train", {"key": "", "facts": {}})
    settings = {**vars(chosen), "seed": how.seed, "train": trained["key"]}
    settings |= {LEARNT: trained["facts"][LEARNT]} if LEARNT in trained["facts"] else {}
    settings |= {} if how.minutes is None else {"minutes": how.minutes}
    settings |= {} if chosen.joint else {"generator": generator_digest(artifact / "model")}
    key = stage_key(settings, [artifact / "histories.parquet", artifact / "catalogue.parquet"])
    train_stage(
        artifact, "draft", key, ("draft.json", "draft.safetensors"),
        lambda state: how.on_ranks(draft_artifact, artifact, chosen, state, how.seed, how.minutes),
    )  # fmt: skip


def make_ranker(
    artifact: Path, order: str = "split", shared: bool = True, history: str = "codes", how: How = PLAIN,
    changes: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """`model/ranker.*`: a ranker over the generator as it is, or with layers of its own throughout."""
    from genrec.catalogue.files import ITEM_TOKENS
    from genrec.rank.options import OPTIONS, WEIGHTS
    from training.launch import use_threads
    from training.ranker.train import RankerSettings, check_layers, open_places, ranker_artifact
    from training.recipe_file import changed

    check_generator(artifact)
    chosen, model = changed(RankerSettings(), changes or {}), artifact / "model"
    settings = {**vars(chosen), "order": order, "shared": shared, "history": history, "seed": how.seed}
    settings["minutes"] = how.minutes
    given = [artifact / "histories.parquet", artifact / "catalogue.parquet", model / "model.safetensors"]
    own_tokens = artifact / ITEM_TOKENS
    key = stage_key(settings, [*given, *([own_tokens] if own_tokens.exists() else [])])

    def work(state: Path) -> dict[str, Any]:
        check_layers(artifact, shared, chosen)
        if how.ranks > 1:
            use_threads(how.threads)
            open_places(artifact, chosen.places, history)  # makes the candidates, once for all ranks
        found: dict[str, Any] = how.on_ranks(
            ranker_artifact, artifact, chosen, state, order, shared, how.seed, how.minutes, history
        )
        return found

    train_stage(artifact, "ranker", key, (OPTIONS, WEIGHTS), work)


def make_hstu(artifact: Path, how: How = PLAIN, changes: Mapping[str, Any] | None = None) -> None:
    """`model/hstu.*`: an HSTU ranker of the data set's ratings, which stands beside the generator."""
    from genrec.rank.hstu import CONFIG, FEATURES, WEIGHTS
    from genrec.rank.user_features import USERS
    from training.hstu.settings import HstuSettings
    from training.hstu.train import hstu_artifact

    files = (CONFIG, WEIGHTS, FEATURES)
    _hstu_training(
        artifact, "hstu", files, (USERS, "items.parquet"), hstu_artifact, HstuSettings(), how, changes
    )


def make_hstu_next(artifact: Path, how: How = PLAIN, changes: Mapping[str, Any] | None = None) -> None:
    """`model/hstu_next.*`: an HSTU model of the next item, which stands beside the generator."""
    from genrec.rank.hstu import NEXT_CONFIG, NEXT_WEIGHTS
    from training.hstu_next.settings import HstuNextSettings
    from training.hstu_next.train import hstu_next_artifact

    files = (NEXT_CONFIG, NEXT_WEIGHTS)
    _hstu_training(artifact, "hstu-next", files, (), hstu_next_artifact, HstuNextSettings(), how, changes)


def check_ours(
    artifact: Path, limit: str = "--ranker or --draft alone; for a model of ours another artifact"
) -> None:
    """Refuse to train a generator that was imported, which is not of our recipes. Raises InputError."""
    if (source := read(artifact).get("train", {"facts": {}})["facts"].get("imported")) is not None:
        raise InputError("model", f"was imported from {source}", limit)


def check_generator(artifact: Path) -> None:
    """What is trained over a generator needs one of the catalogue as it is. Raises ArtifactError."""
    from genrec.catalogue.meaning import check_meaning

    check_inputs(artifact, "tokenise")
    check_meaning(artifact, "train")


def _hstu_training(
    artifact: Path, name: str, files: Iterable[str], optional: Iterable[str], work: Callable[..., dict[str, Any]],
    settings: Any, how: How, changes: Mapping[str, Any] | None,
) -> None:  # fmt: skip
    """Of histories and the catalogue, and of those of the `optional` files of the data set that are there."""
    from training.recipe_file import changed

    check_inputs(artifact, "tokenise")
    chosen = changed(settings, changes or {})
    known = [each for each in optional if (artifact / each).exists()]
    given = [artifact / each for each in ("histories.parquet", *known, "catalogue.parquet")]
    key = stage_key({**vars(chosen), "seed": how.seed, "minutes": how.minutes}, given)
    train_stage(
        artifact, name, key, files,
        lambda state: how.on_ranks(work, artifact, chosen, state, how.seed, how.minutes),
    )  # fmt: skip


def make_servable(artifact: Path) -> None:
    """`onnx/`, `engines/` and the validity index, of a trained model."""
    from build.openvino.engines import build_engines
    from build.validity import build_validity
    from export.generator import export_artifact

    for name, make in {
        "export": export_artifact,
        "validity": build_validity,
        "openvino": build_engines,
    }.items():
        begun = time.monotonic()
        print(f"{name}: {f'done in {time.monotonic() - begun:.1f} s' if make(artifact) else 'still good'}")
