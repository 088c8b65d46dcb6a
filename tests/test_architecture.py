"""The imports follow the drawing; and the check sees what does not."""

import re

from tests import architecture


def test_no_arrow_runs_against_the_drawing_and_no_files_import_in_a_circle():
    arrows = architecture.graph()
    assert architecture.upward(arrows) == []
    assert architecture.cycles(arrows) == []


def test_no_file_is_longer_than_a_reader_can_hold():
    name, lines = architecture.longest()
    assert lines <= architecture.LONGEST, name


def test_the_page_has_the_rooms_in_their_order():
    blocks = re.findall(r"```\n(.*?)```", (architecture.ROOT / "docs/contracts.md").read_text(), re.DOTALL)
    rooms, library, *_ = (tuple(re.split(r"\s*<\s*", block.strip())) for block in blocks)
    assert rooms == ("genrec", *architecture.ROOMS[len(architecture.LIBRARY) :])
    assert library == architecture.LIBRARY


def test_what_is_wrong_is_seen():
    arrows = {
        "genrec.search.expand": {"clients.wire"},
        "clients.wire": {"genrec.search.expand"},
        "genrec.stray": set(),
    }
    assert architecture.upward(arrows) == [
        "genrec.stray is in no room",
        "genrec.search.expand -> clients.wire",
    ]
    assert architecture.cycles(arrows) == [["clients.wire", "genrec.search.expand"]]
