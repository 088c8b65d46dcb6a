"""What a target is: the one table that every room reads. A new target is a row here and the modules that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from genrec.errors import InputError


@dataclass(frozen=True)
class Target:
    """One way to run the generator.

    Modules are named, not imported: each brings libraries that no other target needs.
    """

    name: str
    needs: str  # in words, for people who choose
    builder: str  # module with `build_engines(artifact) -> bool`; empty where a server builds its own
    engine: str = ""  # module with `load_passes`; empty where Triton itself runs the engines
    executor: bool = False  # whether that module makes whole-request executors too (`load_executors`)
    streams: bool = True  # whether several batches may run at once
    device: bool = False  # whether the host's cores are free while a pass runs
    staged: bool = True  # whether every pass can be a model of Triton, its KV in the arena
    ranker: str = ""  # module with `load_rankers`; empty where no ranker over the generator's layers runs
    hstu: str = ""  # module with `load_hstu`; empty where no HSTU ranker runs
    made_of: tuple[
        str, ...
    ] = ()  # stages whose facts say of which weights engines are; none: it reads `model/` itself
    shortest_prompt: int = 0  # tokens that even an empty history is padded to
    steps: Mapping[str, str] = field(default_factory=dict)  # steps of its own, by the one they stand for


_ROWS = (
    Target(
        "openvino", "any x86-64 CPU", "build.openvino.engines", "genrec.engine.openvino",
        ranker="genrec.engine.openvino_ranker", hstu="genrec.engine.openvino_ranker", made_of=("openvino", "export"),
    ),
    # Not staged: KV would go to the host and back between any two passes, and each model would hold its own weights.
    # No streams: one batch fills a GPU, and a second one would need memory of its own for every graph.
    Target(
        "cuda", "a GPU, torch and nvcc", "build.cuda.engines", "genrec.engine.cuda", executor=True,
        streams=False, device=True, staged=False, ranker="genrec.engine.cuda.ranker", hstu="genrec.engine.cuda.hstu",
    ),
    # Logits reach its beam search as a tensor, since KV never leaves the GPU; a plan takes no empty tensor.
    Target(
        "tensorrt", "the Triton container on a GPU (deploy/tensorrt)", builder="", made_of=("export",),
        shortest_prompt=1,
        steps={"beam_search": "beam_search_of_logits"},
    ),
)  # fmt: skip
TARGETS = {target.name: target for target in _ROWS}
DEFAULT = _ROWS[0].name


def target_of(name: str) -> Target:
    """The row of a target. Raises InputError."""
    if name not in TARGETS:
        raise InputError("target", f"is {name!r}", f"one of {', '.join(TARGETS)}")
    return TARGETS[name]


def runnable() -> tuple[str, ...]:
    """The targets whose engines run in processes of ours."""
    return tuple(target.name for target in TARGETS.values() if target.engine)


def ranking_targets(hstu: bool = False) -> tuple[str, ...]:
    """The targets that run rankers over the generator's layers, or HSTU rankers."""
    return tuple(each.name for each in TARGETS.values() if (each.hstu if hstu else each.ranker))
