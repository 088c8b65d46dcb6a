"""Which ensembles an artifact is served by, and by how many processes of each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ensembles.description import Ensemble
from ensembles.pre_infer import pre_infer
from ensembles.rank import rank
from ensembles.recommend import recommend
from ensembles.recommend_and_rank import recommend_and_rank
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import recommend_staged
from genrec.errors import InputError
from genrec.target import DEFAULT, target_of

MOST_INSTANCES = 16  # each is a process that loads what its step needs


def served(levels: int, draft: bool, ranker: bool, target: str = DEFAULT) -> tuple[Ensemble, ...]:
    """`recommend` and `recommend_staged`; `recommend_draft` too when the generator has a draft head, and rankings
    and `pre_infer` when there is a ranker beside it.

    Whether `recommend_staged` is among them the target's row says.
    """
    staged = (recommend_staged(levels),) if target_of(target).staged else ()
    drafts = (recommend_draft(),) if draft else ()
    rankings = (rank(), recommend_and_rank(), pre_infer()) if ranker else ()
    return (recommend(), *staged, *drafts, *rankings)


def with_instances(ensembles: tuple[Ensemble, ...], counts: Mapping[str, int]) -> tuple[Ensemble, ...]:
    """The same with `counts` processes of these models. Raises InputError naming the model."""
    names = sorted({model.name for ensemble in ensembles for model in ensemble.models})
    for name, count in counts.items():
        if name not in names:
            raise InputError("instances", f"names {name}", f"models that are served: {', '.join(names)}")
        if not 1 <= count <= MOST_INSTANCES:
            raise InputError("instances", f"asks for {count} of {name}", f"1 to {MOST_INSTANCES}")

    def changed(ensemble: Ensemble) -> Ensemble:
        models = (replace(each, instances=counts.get(each.name, each.instances)) for each in ensemble.models)
        return replace(ensemble, models=tuple(models))

    return tuple(changed(ensemble) for ensemble in ensembles)
