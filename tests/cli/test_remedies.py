"""What no longer fits names the command that makes it anew, and there is such a command."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from build.validity import build_validity
from build.version import write_version
from cli.main import main, parser
from genrec.catalogue.files import CATALOGUE, GROUPS, VALID_IDS, VALIDITY
from genrec.catalogue.groups import Groups
from genrec.catalogue.versions import BASE, FOLDER, check_files, folder_of
from genrec.errors import ArtifactError
from genrec.files import open_file
from genrec.manifest import COMMANDS, anew, digest_file, outdated, read, record, verify
from genrec.nn.checkpoint import load_generator, save_generator
from tests.tiny import tiny_catalogue


@pytest.mark.parametrize(("stage", "command"), COMMANDS.items())
def test_every_stage_that_a_command_makes(stage: str, command: str, tmp_path: Path) -> None:
    verb, *options = command.split()
    assert parser().parse_args([verb, "artifact", *options]).verb == verb
    (tmp_path / "file").write_text("as it was made")
    record(tmp_path, stage, "key", [tmp_path / "file"], {})
    (tmp_path / "file").write_text("another")
    typed = " ".join([verb, str(tmp_path), *options])
    says = rf"file: is not the file that stage `{stage}` made; `genrec {typed}` makes it anew$"
    with pytest.raises(ArtifactError, match=says):
        verify(tmp_path)


def test_of_an_imported_artifact_it_is_the_import() -> None:
    artifact, facts = Path("artifacts/of mine"), {"imported": "a checkpoint"}
    assert anew(artifact, "train", facts) == "; `genrec import CHECKPOINT 'artifacts/of mine'` makes it anew"
    assert anew(artifact, "quality") == ""


def test_a_draft_head_of_an_earlier_generator(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the generator is trained once more, and then exported."""
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    generator = load_generator(artifact / "model")
    generator.lm_head.weight.data += 1
    save_generator(generator, artifact / "model")
    assert main(["export", str(artifact)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(
        f"another generator than model.safetensors; `genrec train {artifact} --draft alone` makes it anew"
    )
    assert not (artifact / "onnx.partial").exists()
    for name, sha in read(artifact)["export"]["outputs"].items():
        assert digest_file(artifact / name) == sha, "what was exported before is gone"


def test_an_export_of_an_earlier_generator(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when it is trained once more, and not exported: what there is can be served still."""
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    assert not outdated(artifact)
    generator = load_generator(artifact / "model")
    generator.lm_head.weight.data += 1
    save_generator(generator, artifact / "model")
    record(artifact, "train", "other", (artifact / "model").iterdir(), {})
    anew = f"`genrec export {artifact}` and `genrec build {artifact}` make it anew"
    says = f"onnx is of an earlier model/model.safetensors: {anew}"
    assert main(["build", str(artifact)]) == 0 and says in capsys.readouterr().err
    for answers in (
        ["serve", str(artifact), "--ensembles", "none"],
        ["route", str(artifact), "--ensembles", "none"],
        ["rollout", str(tiny), str(artifact)],
        ["recommend", str(artifact), "--history", "1"],
        ["rank", str(artifact), "--history", "1"],
        ["evaluate", str(artifact)],
        ["web", str(artifact), "--port", "0"],
        ["sweep", str(artifact), "--slo-p99-ms", "1", "--beam-width", "0", "--out", str(tmp_path / "sweep")],
    ):
        main(answers)
        assert says in capsys.readouterr().err, answers


def test_engines_without_an_export(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = shutil.copytree(tiny, tmp_path / "artifact", ignore=shutil.ignore_patterns("onnx"))
    assert main(["build", str(artifact)]) == 2
    assert f"artifact/onnx: is missing; `genrec export {artifact}` makes it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "command"),
    [
        ([], "data {}"),
        (["items.parquet", "source.json"], "data {}"),
        (
            ["items.parquet"],
            "import CHECKPOINT {} --interactions FILE",
        ),  # as an import leaves it without them
    ],
)
def test_histories_that_are_missing(there: list[str], command: str, tmp_path: Path) -> None:
    for name in there:
        (tmp_path / name).touch()
    made = command.format(tmp_path)
    with pytest.raises(ArtifactError, match=rf"No such file or directory; `genrec {made}` makes it$"):
        open_file(tmp_path / "histories.parquet")


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("model/hstu.json", "train {} --recipe hstu-ranker"),
        ("validity.safetensors", "build {}"),
        ("engines/cuda/engine.json", "build {} --target cuda"),
        ("engines/openvino/bf16/engine.json", "build {}"),
        ("config.json", ""),  # of a checkpoint, which no command of ours makes
        ("catalogues/2/catalogue.parquet", ""),  # made by `catalogue add`
    ],
)
def test_a_file_that_is_missing_in_its_place(missing: str, command: str, tmp_path: Path) -> None:
    artifact = tmp_path / "of mine"
    remedy = command and f"; `genrec {command.format(repr(str(artifact)))}` makes it"
    with pytest.raises(ArtifactError, match=rf"No such file or directory{remedy}$"):
        open_file(artifact / missing)


def test_an_index_of_an_earlier_catalogue(tiny: Path, tmp_path: Path) -> None:
    """As when data were made anew and nothing was built."""
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    build_validity(artifact)
    (artifact / CATALOGUE).write_bytes(b"another")
    with pytest.raises(ArtifactError, match=f"beside it describes; `genrec build {artifact}` makes it anew"):
        check_files(artifact, BASE)


@pytest.mark.parametrize("gone", ["manifest.json", CATALOGUE, VALIDITY, VALID_IDS, GROUPS])
def test_a_later_version_of_the_catalogue_that_lacks_a_file(gone: str, tmp_path: Path) -> None:
    """`genrec data` or `build` would make that file of the artifact's own catalogue, and the former all codes anew."""
    catalogue = tiny_catalogue()
    catalogue.save(tmp_path / CATALOGUE)
    (tmp_path / FOLDER).mkdir()
    no_tokens = np.zeros((len(catalogue), 0), np.int32)
    groups = Groups(["sale"], [np.zeros(1, np.int32)], len(catalogue))
    folder = folder_of(tmp_path, write_version(tmp_path, catalogue, no_tokens, groups, {}))
    check_files(tmp_path, 2)
    (folder / gone).unlink()
    with pytest.raises(ArtifactError, match=r"--base 1 makes another version$"):
        check_files(tmp_path, 2)
