"""A catalogue that another process makes while the one before is indexed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from build import validity
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import check_files
from genrec.errors import ArtifactError
from tests.tiny import tiny_catalogue


def test_an_index_of_the_one_before_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / CATALOGUE
    tiny_catalogue().save(path)

    def made_anew(*_: object) -> None:
        old = Catalogue.load(path)
        replace(old, codes=old.codes[::-1]).save(path)

    with monkeypatch.context() as patched:
        patched.setattr(validity, "check_meaning", made_anew)
        with pytest.raises(ArtifactError, match=rf"{CATALOGUE}: was made anew by another process meanwhile"):
            validity.build_validity(tmp_path)
    with pytest.raises(ArtifactError, match="has no index of its items"):
        check_files(tmp_path, 1)
    assert validity.build_validity(tmp_path)
    check_files(tmp_path, 1)
