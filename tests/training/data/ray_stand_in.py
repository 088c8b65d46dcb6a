"""What stands for Ray Data where it is not installed: blocks in this process, moved and mixed as a cluster may."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa


class Blocks:
    """As much of `ray.data.Dataset` as is used."""

    def __init__(self, blocks: list[pa.Table]) -> None:
        self._blocks = blocks

    def map_batches(self, work: Callable[[pa.Table], Any], **_: object) -> Blocks:
        made = (work(block) for block in self._blocks)
        return Blocks([each for of in made for each in ([of] if isinstance(of, pa.Table) else of)])

    def repartition(self, blocks: int, keys: list[str]) -> Blocks:
        """All of a key in one block; rows in any order."""
        whole, draw = pa.concat_tables(self._blocks), random.Random(blocks)
        place = {key: draw.randrange(blocks) for key in whole[keys[0]].unique().to_pylist()}
        of = [place[key] for key in whole[keys[0]].to_pylist()]
        rows = draw.sample(range(len(whole)), len(whole))
        chosen = ([row for row in rows if of[row] == block] for block in range(blocks))
        return Blocks([whole.take(pa.array(each, pa.int64())) for each in chosen])

    def sort(self, key: str) -> Blocks:
        return Blocks([pa.concat_tables(self._blocks).sort_by(key)])

    def iter_batches(self, batch_size: int, **_: object) -> Iterator[pa.Table]:
        whole = pa.concat_tables(self._blocks)
        return (whole.slice(start, batch_size) for start in range(0, len(whole), batch_size))

    def materialize(self) -> Blocks:
        return self

    def count(self) -> int:
        return sum(map(len, self._blocks))

    def to_arrow_refs(self) -> list[pa.Table]:
        return self._blocks


def modules() -> dict[str, ModuleType]:
    """By their names."""
    ray, data = ModuleType("ray"), ModuleType("ray.data")
    same: Callable[[Any], Any] = lambda each: each  # noqa: E731
    vars(ray).update(data=data, init=lambda *_, **__: None, shutdown=lambda: None, put=same, get=same)
    context = SimpleNamespace(enable_progress_bars=True)
    vars(data).update(
        Dataset=Blocks,
        DataContext=SimpleNamespace(get_current=lambda: context),
        from_items=lambda items, **_: Blocks([pa.Table.from_pylist([each]) for each in items]),
    )
    return {"ray": ray, "ray.data": data}
