"""Servers that do not follow a switch of the catalogue in time; what they would say is planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from build.catalogue import remove_items
from deploy import switch
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.catalogue.agreement import Acknowledgement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import Current, read_current
from genrec.progress import counting
from tests.oracles.twin import twin_artifact


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", (7, 6, 5), 60)
    remove_items(made, Catalogue.load(made / CATALOGUE).item_ids[:1])
    return made


@pytest.fixture
def server(artifact: Path) -> Iterator[Path]:
    """The swap folder of a server that has started with version 1 and whose processes have said nothing yet."""
    prefix = leftovers.own_prefix()
    folder = leftovers.SHM / f"{prefix}{leftovers.SWAP}"
    agreement.create(folder, artifact, 1)
    yield folder
    leftovers.remove(prefix)


@pytest.mark.parametrize("said", [True, False])
def test_who_has_not_loaded_it_in_time_is_named_and_the_old_version_stays(
    artifact: Path, server: Path, monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    monkeypatch.setattr(switch, "PATIENCE_S", -1.0)
    if said:
        agreement.acknowledge(server, "decode-7", Acknowledgement(0, (1,), 1))
    waited_for = "decode-7" if said else rf"a server that starts \({server.name}\)"
    before = read_current(artifact)
    with pytest.raises(switch.NotSwapped, match=rf"/2: not loaded after -1 s by {waited_for}$"):
        switch.switch(artifact, 2)
    after = read_current(artifact)
    assert (after.version, after.highest) == (1, 2) and after.serial > before.serial


def test_a_server_that_starts_is_one_to_wait_for_and_none_that_is_there(artifact: Path, server: Path) -> None:
    with counting("version 2", 0, "process") as bar:
        assert len(switch._behind(artifact, Current(2, 1), bar)) == 1
    assert (bar.n, bar.total) == (0, 1)
