"""Rankers on disk, beside their generator: `ranker.json` and `ranker.safetensors`. No pickle."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular
from genrec.nn.checkpoint import check_trained_on_this, generator_digest, load_generator, write_weights
from genrec.nn.ranker import Ranker
from genrec.rank.options import OPTIONS, WEIGHTS, RankerConfig


def save_ranker(ranker: Ranker, folder: Path, generator: str | None = None) -> None:
    """Write `folder`/ranker.json and `folder`/ranker.safetensors, which remembers the generator of this digest.

    Without one it is the generator beside it, whose tensors are in it only where the ranker has changed them. Raises
    ArtifactError.
    """
    of = generator_digest(folder) if generator is None else generator
    ranker.options.save(folder / OPTIONS)
    tensors = {
        name: tensor for name, tensor in ranker.state_dict().items() if not _kept_elsewhere(ranker, name)
    }
    write_weights(folder / WEIGHTS, tensors, generator=of)


def load_ranker(folder: Path, of_this: bool = True) -> Ranker:
    """Read a ranker, in evaluation mode. Raises ArtifactError naming what does not fit.

    `of_this` generator alone; else of an earlier one too, which has learnt further since.
    """
    path = folder / WEIGHTS
    options = RankerConfig.load(folder / OPTIONS)
    try:
        ranker = Ranker(load_generator(folder), options.shared, layers=options.layers)
    except InputError as error:
        raise ArtifactError(folder / OPTIONS, str(error)) from error
    ranker.options = options
    try:
        found = ranker.load_state_dict(load_file(check_regular(path)), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ArtifactError(path, f"not this generator's ranker: {error}") from error
    missing = [name for name in found.missing_keys if not _kept_elsewhere(ranker, name)]
    if missing or found.unexpected_keys:
        raise ArtifactError(path, f"lacks {missing[:3]} and has {found.unexpected_keys[:3]} too many")
    if of_this:
        check_trained_on_this(path, "ranker")
    return ranker.eval()


def _kept_elsewhere(ranker: Ranker, name: str) -> bool:
    """Whether a tensor is the generator's, which lies beside it."""
    return ranker.shared and name.startswith("generator.")
