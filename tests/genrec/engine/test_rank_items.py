"""Items of a ranking over a pool that is too small, of another size, or lost in the middle: answers stay."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from build.catalogue import remove_items
from cli.main import main
from deploy import pools
from genrec.artifact import load_config
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import point, read_current
from genrec.engine.fill import fill
from genrec.engine.instructions import engine_of
from genrec.engine.load_ranker import load_entry_layout, load_rank_executors
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest, Reuse
from genrec.errors import ArtifactError
from genrec.nodes.item_store import ItemStore
from genrec.pool.pool import Pool
from genrec.rank.item_tokens import DistinctItems
from genrec.settings import Settings
from tests.pool.folder_store import FolderStore

ROWS = 20


class Bench:
    """Rankings over a pool of `rows` rows, of `wider` times the size of an item."""

    def __init__(
        self, artifact: Path, folder: Path, rows: int = ROWS, wider: int = 1, store: ItemStore | None = None
    ) -> None:
        self.settings = Settings(artifact, folder / "arena", pool=folder / "pool")
        config = load_config(artifact)
        self.item_bytes = load_entry_layout(self.settings, config).item_bytes
        Pool.create(folder / "pool", 1 << 20, rows, wider * self.item_bytes)
        self.executor: RankExecutor = load_rank_executors(self.settings, config, store)[0]
        self.alone: RankExecutor = load_rank_executors(Settings(artifact, folder / "arena"), config)[0]
        self.items = DistinctItems.load(artifact, config)

    def ask(self, rows: Any, order: str = "split", keep: bool = True) -> Reuse:
        """A ranking, which is that without a pool."""
        tokens = self.items.tokens[np.asarray(rows)]
        request = RankRequest(1, np.arange(12, dtype=np.int32), tokens, tokens)
        found, reuse = self.executor.scores(request, RankPlan(order, True, keep))
        want, _ = self.alone.scores(request, RankPlan("whole", False, False))
        if order == "split":
            np.testing.assert_allclose(found, want, atol=1e-4)
        return reuse


def test_a_pool_that_keeps_no_items_is_not_filled(tmp_path: Path) -> None:
    """As of an HSTU ranker, of which there is no ranker to train first either."""
    Pool.create(tmp_path / "pool", 1 << 16, 0, 0)
    with pytest.raises(ArtifactError, match="has no room for items, as its server keeps none"):
        fill(Settings(tmp_path, tmp_path / "arena", pool=tmp_path / "pool"))


def test_rows_of_another_size_are_neither_read_nor_written(tiny_ranker: Path, tmp_path: Path) -> None:
    """As after `genrec build` with another precision, beside a server that has the pool of the old one."""
    bench = Bench(tiny_ranker, tmp_path, wider=2)
    memory: NDArray[np.uint8] = Pool(bench.settings.pool).items_memory
    memory[:] = 7
    assert bench.ask(range(5)).items == bench.ask(range(5)).items == 0 == bench.executor.items.places
    with pytest.raises(
        ArtifactError, match=f"{2 * bench.item_bytes} bytes.* takes {bench.item_bytes}: start"
    ):
        fill(bench.settings)
    assert (memory == 7).all()


def test_nothing_is_filled_by_engines_that_are_not_as_they_were_made(
    tiny_ranker: Path, tmp_path: Path
) -> None:
    """An artifact that is being replaced has new weights under the old one's name, by which a server finds items."""
    artifact = Path(shutil.copytree(tiny_ranker, tmp_path / "artifact"))
    bench = Bench(artifact, tmp_path)
    weights = engine_of(artifact, "openvino") / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError, match=rf"{weights}: is not the file that stage"):
        fill(bench.settings)
    assert Pool(bench.settings.pool).usage()["items"] == 0


def test_items_are_those_that_the_pool_s_server_answers_with(
    tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have refused the version that is pointed to, and serve the one before."""
    artifact = Path(shutil.copytree(tiny_ranker, tmp_path / "artifact"))
    few = remove_items(artifact, Catalogue.load(artifact / CATALOGUE).item_ids[3:])
    point(artifact, read_current(artifact).to(few))
    pool, swap = tmp_path / "genrec-1-pool", tmp_path / "genrec-1-swap"
    settings, config = Settings(artifact, tmp_path / "arena", pool=pool), load_config(artifact)
    Pool.create(pool, 1 << 20, ROWS, load_entry_layout(settings, config).item_bytes)
    agreement.create(swap, artifact, 1)
    monkeypatch.setattr(pools, "servers_of", lambda _: [swap])
    assert main(["pool", "fill", str(artifact)]) == 0
    assert Pool(pool).usage()["items"] == ROWS


def test_what_a_ranking_found_does_not_leave_for_what_it_missed(tiny_ranker: Path, tmp_path: Path) -> None:
    bench = Bench(tiny_ranker, tmp_path)
    bench.ask(range(ROWS))
    for _ in range(5):
        bench.ask(range(10))  # so that 10 to 19 are the coldest
    found = bench.executor.items.kv_of(bench.items.tokens[10:30], keep=True)
    assert found.there.sum() == 10 and not bench.executor.items.changed(found)
    rows = Pool(bench.settings.pool).item_rows(bench.executor.items.words(bench.items.tokens[:30]))
    assert (rows[10:30] >= 0).all() and (rows[:10] < 0).all()


def test_nor_for_what_another_node_has(tiny_ranker: Path, tmp_path: Path) -> None:
    far, store = FolderStore(tmp_path / "store"), ItemStore(lambda: far, 3)
    store.store = far
    bench = Bench(tiny_ranker, tmp_path, store=store)
    items, tokens = bench.executor.items, bench.items.tokens
    assert far.put_items(items.words(tokens[:30]), items.rows(tokens[:30]), 1.0) is not None
    store.computed(1, 1e3)  # seconds: there is time to ask
    bench.ask(range(ROWS))
    for _ in range(5):
        bench.ask(range(10))
    assert bench.ask(range(10, 30)).items == ROWS * items.tokens, "what was found was computed again"


def test_more_items_than_rows_are_ranked(tiny_ranker: Path, tmp_path: Path) -> None:
    bench = Bench(tiny_ranker, tmp_path)
    bench.ask(range(10))
    assert bench.ask(range(40)).items == 10 * bench.executor.items.tokens
    assert bench.ask(range(40)).items == ROWS * bench.executor.items.tokens


@pytest.mark.parametrize("step", ["find_items", "write_items"])
def test_a_pool_that_is_lost_in_the_middle_changes_no_answer(
    step: str, tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, real = Bench(tiny_ranker, tmp_path), getattr(Pool, step)
    bench.ask(range(10))

    def lose_after(pool: Pool, *given: Any, **more: Any) -> Any:
        answer = real(pool, *given, **more)
        pool.close()
        return answer

    monkeypatch.setattr(Pool, step, lose_after)
    bench.ask(range(5, 15))
    assert bench.ask(range(10)).items == 0


def test_rows_that_become_another_s_while_the_missing_are_computed_are_not_read(
    tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tiny_ranker, tmp_path)
    bench.ask(range(ROWS))
    items, compute = bench.executor.items, bench.executor.items._entries
    others = items.words(bench.items.tokens[-ROWS:])

    def meanwhile(tokens: NDArray[np.int32]) -> Any:
        monkeypatch.setattr(items, "_entries", compute)
        other = Pool(bench.settings.pool)
        assert (other.write_items(others) >= 0).all()
        other.items_memory[:] = 0xFF  # no numbers
        return compute(tokens)

    monkeypatch.setattr(items, "_entries", meanwhile)
    bench.ask(range(ROWS // 2, ROWS + 5), keep=False)
    assert items._entries == compute
