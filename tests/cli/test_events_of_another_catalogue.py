"""After `genrec data` made other semantic IDs, a model that has learnt a file of events is no answer to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.main import main
from genrec import manifest
from genrec.catalogue.items import MEANING
from training.further import LEARNT


@pytest.mark.parametrize(("recipe", "stage"), [("hstu-ranker", "hstu"), ("hstu-next", "hstu-next")])
def test_what_has_learnt_the_file_for_another_catalogue_is_refused(
    recipe: str, stage: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, events = Path(shutil.copytree(tiny, tmp_path / "artifact")), tmp_path / "monday.csv"
    events.write_text("user,item,timestamp,rating\n1,1,1,1\n")
    stages = manifest.read(artifact)
    facts = {MEANING: "of another catalogue", LEARNT: [manifest.digest_file(events)]}
    stages[stage] = {"key": "", "outputs": {}, "facts": facts}
    (artifact / "manifest.json").write_text(json.dumps(stages))
    assert main(["train", str(artifact), "--recipe", recipe, "--events", str(events)]) == 2
    anew = f"`genrec train {artifact} --recipe {recipe}`"
    assert (
        f"has other semantic IDs than those that stage '{stage}' was trained with; {anew}"
        in capsys.readouterr().err
    )
