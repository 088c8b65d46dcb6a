"""Semantic IDs to items: every one is looked up in the set of valid ones before it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.files import VALIDITY
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.indices import load_indices
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import ArtifactError, InputError
from genrec.report import MODEL, POPULARITY, Report
from genrec.search.lookup import NOTHING, PopularityRanking, lookup
from genrec.settings import Settings
from genrec.steps import EachAlone, Tensors, check_tensor, excluded_of
from genrec.steps.ticket import read_ticket
from genrec.steps.versioned import Versioned


@dataclass(frozen=True)
class _LookupTables:
    """One catalogue version."""

    item_ids: NDArray[np.int64]
    popular: PopularityRanking
    index: ValidityIndex
    valid: SemanticIdSet


class ValidityLookup(EachAlone):
    """paths (whole semantic IDs), scores, ticket, excluded -> item_ids, scores, report."""

    def __init__(self, settings: Settings) -> None:
        self._config = load_config(settings.artifact, settings.target)
        self._loaded = Versioned(settings, "validity_lookup", self._load)
        self.close = self._loaded.close

    def _load(self, folder: Path) -> _LookupTables:
        catalogue = load_catalogue(folder, self._config)
        index, valid = load_indices(folder, self._config)
        if index.items != len(catalogue):
            raise ArtifactError(
                folder / VALIDITY, f"indexes {index.items} items, the catalogue has {len(catalogue)}"
            )
        popular = PopularityRanking.build(catalogue.popularity, catalogue.item_ids)
        nobody = np.array([-1], np.int32)
        # What numba compiles is there before the first request, and the compiler's memory can go.
        lookup(index, valid, catalogue.item_ids, np.zeros(1, np.int64), np.zeros(1, np.float32), 1, nobody)
        return _LookupTables(catalogue.item_ids, popular, index, valid)

    def answer(self, request: Tensors) -> Tensors:
        """See `EachAlone.answer`."""
        ticket = read_ticket(request, self._config.max_prompt)
        version = ticket.version or self._loaded.current
        loaded = self._loaded.of(version)
        ids = check_tensor(request, "paths", np.int64)
        scores = check_tensor(request, "scores", np.float32, len(ids))
        excluded = excluded_of(request)
        if ticket.top_k > loaded.index.items:
            limit = f"1 to {loaded.index.items}, the items of the catalogue"
            raise InputError("ticket", f"says top_k {ticket.top_k}", limit)
        ticket.check_deadline("validity_lookup")
        if ticket.prompt_length == 0:
            source, valid = POPULARITY, 0
            given = loaded.index.listed(excluded)
            chosen = loaded.index.groups.listed(given.choice) if given.choice else NOTHING
            items, best = loaded.popular.top(ticket.top_k, given, chosen)
        else:
            source = MODEL
            items, best, invalid = lookup(
                loaded.index, loaded.valid, loaded.item_ids, ids, scores, ticket.top_k, excluded
            )
            valid = min(len(ids) - invalid, ticket.top_k)
            metrics.SEMANTIC_IDS.add(len(ids) - invalid, verdict="valid")
            metrics.SEMANTIC_IDS.add(invalid, verdict="invalid")
        metrics.LIST_ITEMS.add(len(items), kind="answered")
        if len(items) < ticket.top_k:
            metrics.LIST_ITEMS.add(ticket.top_k - len(items), kind="short")
        report = Report(source, ticket.dropped, ticket.cut, ticket.prompt_length, valid, version)
        return {
            "item_ids": items[None],
            "scores": best[None],
            "report": np.array([report], np.int64),
        }
