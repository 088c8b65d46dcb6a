"""`genrec recommend` told what may be answered: by the local runtime and by a server alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import main
from deploy.launcher import RunningServer

IDS = re.compile(r"\[(\d+)\]$", re.MULTILINE)
WISHES = {
    "neither": ([], [], lambda known: known),
    "exclude": ([0, 1, 2, 3], [], lambda known: known[4:]),
    "only": ([], [5, 6, 7], lambda known: known[5:8]),
    "both": ([6], [5, 6, 7], lambda known: [known[5], known[7]]),
}


@pytest.mark.serving
@pytest.mark.parametrize("wish", WISHES)
def test_only_what_is_wished_is_answered(
    tiny: Path, server: RunningServer, items: list[int], wish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exclude, only, left = WISHES[wish]
    given = ["recommend", str(tiny), "--history", ",".join(map(str, items[:3])), "--top-k", "5"]
    for option, places in (("--exclude", exclude), ("--only", only)):
        if places:
            given += [option, ",".join(str(items[place]) for place in places)]
    answers = []
    for where in (["--beam-width", "32"], ["--url", server.grpc_url]):
        assert main([*given, *where]) == 0
        answers.append([int(item) for item in IDS.findall(capsys.readouterr().out)])
    assert answers[0] == answers[1]
    allowed = left(items)
    assert set(answers[0]) <= set(allowed) and len(answers[0]) == min(5, len(allowed))


def test_a_list_that_is_none_is_refused(
    tiny: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("exclude", "only"):
        assert main(["recommend", str(tiny), "--history", str(items[0]), f"--{option}", "x,y"]) == 2
        assert f"{option}: " in capsys.readouterr().err
