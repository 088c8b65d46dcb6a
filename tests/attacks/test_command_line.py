"""Whatever a person gives `genrec`, it ends with a line that names field or file, problem and limit; no traceback."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import VERBS, main
from cli.run import run
from training.data.steps import Steps

ROOT = Path(__file__).parents[2]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The last line on stderr of a command that must end with exit code 2."""
    try:
        code: object = main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse
        code = end.code
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and said, said
    return said[-1]


def command(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """`genrec` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        cwd=ROOT, text=True, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    """Options of `genrec data` for two good files."""
    items = range(101, 141)
    (tmp_path / "items.csv").write_text("item,title\n" + "".join(f"{i},title {i}\n" for i in items))
    rows = (f"{user},{item},{item}\n" for user in (1, 2, 3) for item in items)
    (tmp_path / "seen.csv").write_text("user,item,timestamp\n" + "".join(rows))
    return ["--interactions", str(tmp_path / "seen.csv"), "--items", str(tmp_path / "items.csv")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["data", "a", "--codebook-sizes=0"], r"--codebook-sizes: is '0' \(accepted: .*sizes 1 to"),
        (["data", "a", "--codebook-sizes=8,x"], r"--codebook-sizes: is '8,x' \(accepted: whole numbers"),
        (["data", "a", "--codebook-sizes=65537,2"], r"--codebook-sizes: is .* sizes 1 to 65536\)"),
        (["data", "a", "--codebook-sizes="], "--codebook-sizes: is ''"),
        (["evaluate", "a", "--users", "0"], r"--users: is '0' \(accepted: a whole number of at least 1\)"),
        (["evaluate", "a", "--users", "-3"], "--users: is '-3'"),
        (["evaluate", "a", "--users", "many"], "--users: is 'many'"),
        (["train", "a", "--seed", "-1"], "--seed: is '-1'"),
        (
            ["train", "a", "--seed", str(2**62)],
            r"--seed: is .* \(accepted: a whole number, 0 to 4294967295\)",
        ),
        (
            ["train", "a", "--recipe", "other"],
            r"recipe: is 'other' \(accepted: generator, draft, ranker, hstu-ranker, hstu-next, or",
        ),
        (
            ["train", "a", "--ranker-order", "both"],
            r"ranker-order: is given for generator.*accepted: for ranker alone",
        ),
        (["train", "a", "--recipe", "hstu-next", "--own-backbone"], "own-backbone: is given for hstu-next"),
        (
            ["train", "a", "--recipe", "hstu-ranker", "--events", "x.csv", "--minutes", "1"],
            "minutes: is given with --ev",
        ),
        (["evaluate", "a", "--ranker", "--users", "5"], "users: is given for ranker"),
        (["evaluate", "a", "--user", "5"], "unrecognized arguments: --user 5"),  # and not --users
        (["recommend", "a", "--user", "5", "--history", "1"], "--history: not allowed with argument --user"),
        (["recommend", "a", "--deadline-ms", "5"], "deadline-ms: is given without --url"),
        (["recommend", "a", "--protocol", "http"], r"protocol: is http without --url \(accepted: a server"),
        (["recommend", "a", "--url", "127.0.0.1:1", "--beam-width", "5"], "beam-width: is given with --url"),
        (
            ["rank", "a", "--candidates", "1", "--retrieve", "5"],
            "--retrieve: not allowed with argument --candid",
        ),
        (["data", "a", "--interactions", "x.csv"], r"items: is missing \(accepted: .*beside --interactions"),
        (["data", "a", "--items", "x.csv"], r"interactions: is missing \(accepted: .*beside --items"),
        (["evaluate", "a", "--recipe", "hstu-next", "--keep-seen"], "keep-seen: is given for hstu-next"),
        (["evaluate", "a", "--ranker", "--decoder", "draft"], "decoder: is given for ranker"),
        (["evaluate", "a", "--ranker", "--beam-width", "7"], "beam-width: is given for ranker"),
        (["evaluate", "a", "--recipe", "hstu-next", "--verify", "last"], "verify: is given for hstu-next"),
        (["evaluate", "a", "--verify", "last"], r"verify: is given for the decoder beam.*: for draft alone"),
        (
            ["data", "a", "--semantic-ids", "x", "--codebook-sizes", "8,8"],
            "codebook-sizes: are given with --sem",
        ),
        (["train", "a", "--ranks", "0"], "--ranks: is '0'"),
        (["train", "a", "--recipe", "hstu-ranker", "--ranker"], "not allowed with argument"),
        (["train", "a", "--threads", "-1"], "--threads: is '-1'"),
        (["train", "a", "--threads", "3000000000"], "--threads: is '3000000000'"),
        (["train", "a", "--minutes", "nan"], r"--minutes: is 'nan' \(accepted: a number above 0"),
        (
            ["serve", "a", "--start-timeout-s", "1e10"],
            r"-s: is '1e10' \(accepted: a number above 0, at most 86400\)",
        ),
        (["serve", "a", "--ensembles", "recommend,"], r"--ensembles: is 'recommend,' \(accepted: names with"),
        (["serve", "a", "--instances", "decode=2,decode=3"], "--instances: is .*: .* each model once, as"),
        (["sweep", "a", "--slo-p99-ms", "0"], "--slo-p99-ms: is '0'"),
        (
            ["recommend", "a", "--history", "1,x"],
            r"history: is '1,x' \(accepted: ids alone .* lacks items",
        ),
        (["rank", "a", "--candidates", "1", "--beam-width", "5"], "beam-width: is given with --candidates"),
        (["rank", "a", "--candidates", "x"], r"candidates: is 'x' \(accepted: ids alone as 1,2,3"),
        (["trace", "h:1", "--history", "1,x"], r"--history: is '1,x' \(accepted: whole numbers"),
        (
            ["trace", "h:1", "--history", "1", "--candidates", "2"],
            "candidates: is given for recommend, .*rank ",
        ),
        (
            ["trace", "h:1", "--history", "1", "--ensemble", "rank", "--retrieve", "2"],
            "retrieve: is given for rank, .*: for recommend_and_rank alone",
        ),
        (["route", "a", "--servers", "17"], r"--servers: is '17' \(accepted: a whole number, 1 to 16\)"),
        (["route", "a", "--servers", "two"], r"--servers: is 'two' \(accepted: a whole number, 1 to 16\)"),
        (["route", "a", "--in-flight", "8193"], r"--in-flight: is '8193' \(accepted: .* 1 to 8192\)"),
        (["route", "a", "--wait-ms", "600001"], r"--wait-ms: is '600001' \(accepted: .* 1 to 600000\)"),
        (["rollout", "a", "b", "--share", "101"], r"--share: is '101' \(accepted: a whole number, 1 to 100"),
        (["rollout", "a", "b", "--share", "0"], r"--share: is '0' \(accepted: a whole number, 1 to 100\)"),
        (["recommend", "a", "--deadline-ms", "600001"], r"--deadline-ms: is .*\(accepted: .* 1 to 600000\)"),
        (["rank", "a", "--retrieve", "513"], r"--retrieve: is '513' \(accepted: a whole number, 1 to 512\)"),
        (["cascade", "a", "--url", "h:1", "--retrieve", "513"], "--retrieve: is '513'"),
        (["cascade", "a", "--url", "h:1", "--cascade-ms", "600001"], "--cascade-ms: is '600001'"),
        (["rank", "a", "--history", "1", "--candidates", f"5,{2**64}"], f"candidates: holds {2**64} "),
        (["serve", "a", "--run-dir", __file__], r"--run-dir: is .* \(accepted: a folder.*this is a file"),
        (["serve", __file__], r"artifact: is .* \(accepted: a folder.*this is a file"),
        (["catalogue", "remove", "a", "sku-1"], r"items: are 'sku-1' \(accepted: whole numbers as 1,2,3"),
        (["catalogue", "status", __file__], "artifact: is .*this is a file"),
        (["build", "x" * 5000], "artifact: is .*name of a folder: .*too long"),
    ],
)
def test_an_option_out_of_range_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert re.search(named, refused(capsys, *arguments))


def test_its_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and re.match(r"genrec (\d+\.\d+|of a folder)", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("stage", "made_by"),
    [
        ("train", "data"),
        ("train --recipe hstu-ranker", "data"),
        ("export", "train"),
        ("build", "data"),
        ("evaluate", "data"),
        ("sweep --slo-p99-ms 9", "data"),
    ],
)
def test_a_stage_left_out_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stage: str, made_by: str
) -> None:
    verb, *options = stage.split()
    assert f"`genrec {made_by} {tmp_path}` makes it" in refused(capsys, verb, tmp_path, *options)


def test_engines_left_out_are_named_with_their_target(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    said = refused(capsys, "serve", tiny, "--target", "cuda")
    assert said.endswith(f"engines/cuda: has no engine; `genrec build {tiny} --target cuda` makes it")


def test_bad_input_leaves_no_folder_behind(
    capsys: pytest.CaptureFixture[str], shop: list[str], tmp_path: Path
) -> None:
    (tmp_path / "seen.csv").write_text("user,item,timestamp\n1,101,x\n")
    for there in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert "column timestamp: line 2 is 'x'" in refused(capsys, "data", there / "a", *shop)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == [], "what was there before stays"


def test_the_systems_errors_name_the_file(
    capsys: pytest.CaptureFixture[str], shop: list[str], tmp_path: Path
) -> None:
    said = refused(capsys, "data", "/proc/genrec", *shop)
    assert said == "genrec data: /proc/genrec: No such file or directory"
    (tmp_path / "a" / "items.parquet").mkdir(parents=True)
    assert re.search(r"items\.parquet.*[Dd]irectory", refused(capsys, "data", tmp_path / "a", *shop))


FULL = r"^genrec data: .*No space left on device.*left: \d+ MB on /.* MB on /dev/shm"


@pytest.mark.parametrize("name", ["source.json", "manifest.json.partial"])
def test_a_full_disk_is_said_with_the_room_that_is_left(
    capsys: pytest.CaptureFixture[str], shop: list[str], tmp_path: Path, name: str
) -> None:
    artifact = tmp_path / "a"
    artifact.mkdir()
    (artifact / name).symlink_to("/dev/full")
    assert re.search(FULL, refused(capsys, "data", artifact, *shop))


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(f"{each}.parquet", marks=pytest.mark.long) for each in ("interactions", "histories")),
        "items.parquet",
    ],
)
def test_a_disk_that_is_full_in_the_middle_of_a_stage_leaves_nothing_partial(
    capsys: pytest.CaptureFixture[str], shop: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:  # fmt: skip
    def scratch(steps: Steps) -> Path:
        folder = steps.folder / "partial"
        if not (folder / name).is_symlink():
            folder.mkdir(exist_ok=True)
            (folder / name).symlink_to("/dev/full")
        return folder

    artifact = tmp_path / "a"
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "scratch", property(scratch))
        assert re.search(FULL, refused(capsys, "data", artifact, *shop))
    assert not list(artifact.rglob("partial")) and not list(artifact.glob("*.parquet"))
    assert main(["data", str(artifact), *shop]) == 0


def test_a_disk_that_takes_no_more_weights_is_said(shop: list[str], tmp_path: Path) -> None:
    """safetensors has errors of its own. A limit on the size of files stands for the full disk."""
    small = 40_000  # bytes: more than the tables of this shop take, less than its codebooks
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))  # noqa: E731
    data = ["data", tmp_path / "a", *shop, "--codebook-sizes=512,512"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # what is cut off would be read by others
    with command(*data, stdout=subprocess.PIPE, preexec_fn=limit, env=environment) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in said
    assert re.search(r"genrec data: .*File too large", said.strip().splitlines()[-1])


@pytest.fixture
def many_versions(tiny: Path, tmp_path: Path) -> Path:
    """An artifact of which `catalogue status` has more to say than a pipe holds at once."""
    artifact = Path(
        shutil.copytree(tiny, tmp_path / "many", ignore=shutil.ignore_patterns("engines", "onnx"))
    )
    for version in range(2, 3000):
        (artifact / "catalogues" / str(version)).mkdir(parents=True)
    return artifact


def test_a_reader_that_has_read_enough_is_no_error(many_versions: Path) -> None:
    with command("catalogue", "status", many_versions, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("  version 1: 300 items")
        process.stdout.close()  # as `head -1` does
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_output_to_a_full_disk_is_said(tiny: Path) -> None:
    with (
        open("/dev/full", "w") as full,
        command("catalogue", "status", tiny, stdout=full) as process,
    ):
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.fullmatch(r"genrec catalogue: No space left on device \(left: .*\)\n", said)


@pytest.mark.long
def test_libraries_keep_their_attempts_to_themselves(shop: list[str], tmp_path: Path) -> None:
    """faiss logs every CPU it was not built for; -v of the demo shows that."""
    with command("data", tmp_path / "a", *shop, stdout=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and "faiss" not in said


def test_what_is_not_foreseen_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = VERBS["build"]._replace(run=lambda arguments: 1 / 0)
    monkeypatch.setitem(VERBS, "build", fails)
    with pytest.raises(ZeroDivisionError):
        main(["build", os.devnull + "-folder"])


def test_torch_without_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It raises a RuntimeError."""
    torch = pytest.importorskip("torch")
    assert run("genrec train", lambda: torch.empty(2**50)) == 2
    assert "genrec train: memory: is not enough: " in capsys.readouterr().err
