"""README and docs hold what the saved results say: rendering again changes nothing. And how that is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genrec import settings
from genrec.errors import ArtifactError, InputError
from perf.kit import render
from perf.kit.tables import TABLES


def test_rendering_again_changes_nothing() -> None:
    for path, content in render.rendered(render.ROOT).items():
        assert path.read_bytes() == content, f"python -m perf.kit.render, for {path.name}"


def test_every_claim_of_the_readme_has_its_files() -> None:
    """A table elsewhere may say that it is not measured, and how that is done."""
    saved = {path.stem for path in (render.ROOT / "results").glob("*/*.json")}
    marked = render.BLOCK.finditer((render.ROOT / "README.md").read_text())
    claims = [match["name"] for match in marked if match["name"]]
    assert claims
    for name in claims:
        assert render.files_of(name) <= saved, name


def result(benchmark: str, machine: str = "xeon-amx-2", **figures: Any) -> dict[str, Any]:
    about = {"name": machine, "commit": "abc1234"}
    return {"benchmark": benchmark, **figures, "settings": {"cores": 2}, "machine": about}


def peers(machine: str, factor: float = 1.0) -> dict[str, Any]:
    cells = [
        {"system": system, "model": model, "prompt": prompt, "beam_width": width, **told}
        for model in ("30m", "100m")
        for prompt in (255, 1023)
        for width in (32, 128)
        for system, told in {
            "genrec-triton": {"best_rate": factor * 4000 / width / prompt, "peak_mib": 400.2},
            "slow": {"refusal": "> 25 s"} if width == 128 else {"best_rate": 0.25, "peak_mib": None},
        }.items()
    ]
    return result("peers", machine, ratio_bw128=2.345, cells=cells)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# Title\n<!-- results: swap -->\nold\n<!-- /results -->\nbetween\n<!-- settings -->\n<!-- /settings -->\nend\n"
    )
    (tmp_path / "docs" / "peers.md").write_text("<!-- results: peers -->\n<!-- /results -->\n")
    return tmp_path


def save(root: Path, *found: dict[str, Any]) -> None:
    for each in found:
        path = root / "results" / each["machine"]["name"] / f"{each['benchmark']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each))


def write(root: Path) -> dict[str, str]:
    made = render.rendered(root)
    for path, content in made.items():
        path.write_bytes(content)
    assert render.rendered(root) == made, "a second time changes nothing"
    return {path.name: content.decode() for path, content in made.items()}


SWAP = {"requests": 1200, "swaps": 12, "failed": 0, "mixed_versions": 0}


def test_without_results_the_document_says_how_to_get_them(root: Path) -> None:
    made = write(root)
    assert set(made) == {"README.md", "peers.md"}
    assert "`genrec bench swap --save` does it" in made["README.md"] and "\nold\n" not in made["README.md"]
    assert settings.table().strip() in made["README.md"]
    assert made["README.md"].startswith("# Title\n") and made["README.md"].endswith(
        "<!-- /settings -->\nend\n"
    )


def test_a_marker_inside_a_sentence_is_text(root: Path) -> None:
    told = "put `<!-- results: NAME -->` and `<!-- /results -->` there\n"
    (root / "README.md").write_text(told)
    assert write(root)["README.md"] == told


def test_a_figure_stands_below_its_machine_and_links_to_its_result(root: Path) -> None:
    newer = {"command": "genrec bench swap --more", "date": "2026-11-02"}
    save(root, result("swap", **SWAP), result("swap", "epyc-avx2-2", **(SWAP | {"failed": 3}), **newer))
    (root / "docs" / "swap.md").write_text("<!-- results: swap -->\n<!-- /results -->\n")
    made = write(root)
    lines = made["README.md"].splitlines()
    assert "By `genrec bench swap --more`:" in lines and "|  | epyc-avx2-2 | xeon-amx-2 |" in lines
    row = "| failed | [3][epyc-avx2-2/swap] | [{}][xeon-amx-2/swap] |"
    assert row.format(0) in lines
    assert '[xeon-amx-2/swap]: results/xeon-amx-2/swap.json "commit abc1234"' in lines
    assert '[xeon-amx-2/swap]: ../results/xeon-amx-2/swap.json "commit abc1234"' in made["swap.md"]
    save(root, result("swap", **(SWAP | {"failed": 7})))
    assert row.format(7) in write(root)["README.md"]


def test_a_machine_that_lacks_one_of_the_results_has_an_empty_cell(root: Path) -> None:
    (root / "README.md").write_text("<!-- results: training -->\n<!-- /results -->\n")
    save(root, result("hstu_attention", "epyc-avx2-2", time_ratio_worst=2.5, memory_ratio_worst=3.0))
    figures = {figure.path: 1.0 for figure in TABLES["training"] if figure.file == "training"}
    save(root, result("training", **figures))
    made = write(root)["README.md"]
    assert "| the same, dimension 512 |  | [1.00][xeon-amx-2/training] | `genrec bench training` |" in made
    assert "| the same, peak memory at least | [3.00][epyc-avx2-2/hstu_attention] |  |" in made


def test_a_sweep_that_found_no_rate_was_not_cross_checked(root: Path) -> None:
    (root / "README.md").write_text("<!-- results: sweep -->\n<!-- /results -->\n")
    settings = {"artifact": "ml-1m", "slo_p99_ms": 50.0}
    save(root, result("sweep", highest_rate=0.0, cross_check=None) | {"settings": settings})
    made = write(root)["README.md"]
    assert "| requests/s with P99 within 50 ms, ml-1m | [0][xeon-amx-2/sweep] |" in made
    assert "at that rate, ms | [not measured][xeon-amx-2/sweep] |" in made


def test_a_figure_says_what_it_was_measured_of(root: Path) -> None:
    """Two machines that measured different things have a row each."""
    (root / "README.md").write_text("<!-- results: quality -->\n<!-- /results -->\n")
    of = {"model": {"HR@10": 0.25, "NDCG@10": 0.125}, "transition counts": {"HR@10": 0.5, "NDCG@10": 0.5}}
    settings = {"artifact": "ml-1m", "keep_seen": True}
    save(root, result("quality", "epyc-avx2-2", **of) | {"settings": settings})
    save(root, result("quality", **of) | {"settings": {"artifact": "beauty"}})
    rows = [line.rpartition(" | `")[0] for line in write(root)["README.md"].splitlines()]
    assert "| HR@10 on ml-1m, seen items kept | [0.2500][epyc-avx2-2/quality] | " in rows
    assert "| HR@10 on beauty, seen items removed |  | [0.2500][xeon-amx-2/quality]" in rows
    assert "| NDCG@10 | [0.1250][epyc-avx2-2/quality] | [0.1250][xeon-amx-2/quality]" in rows


@pytest.mark.parametrize(
    ("asked", "whose"),
    [(["openvino-genai"], "OpenVINO GenAI"), (["vllm", "transformers"], "the fastest peer")],
)
def test_a_ratio_to_one_peer_names_it(root: Path, asked: list[str], whose: str) -> None:
    """Of those that were not asked it says nothing."""
    (root / "README.md").write_text("<!-- results: headline -->\n<!-- /results -->\n")
    settings = {"peers": asked, "models": ["30m"], "cores": 2}
    save(root, peers("xeon-amx-2") | {"ratio_bw512": 4.5, "settings": settings})
    row = f"| times the requests/s of {whose}, 31 M parameters, beam width 128 | [2.3][xeon-amx-2/peers] |"
    assert row in write(root)["README.md"]


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"data": "books"}, "shape of books, 31 M parameters"),
        ({"data": "games", "item_tokens": 3}, "shape of games with items of 3 tokens, 31 M parameters"),
        (
            {"data": "books", "histories": "beauty", "model": "384-7"},
            "users of beauty, in the paper's proportion, model 384-7",
        ),
    ],
)
def test_a_caption_names_the_data_and_the_model_that_were_saved(
    root: Path, settings: dict[str, Any], about: str
) -> None:
    save(root, result("rank", counted=7, ways={}) | {"settings": settings})
    assert render.table("rank-ways", root, root).startswith(f"{about}, 7 requests, one at a time")


@pytest.mark.parametrize(
    ("file", "settings", "command"),
    [
        ("rank_quality-b", {"artifacts": ["a", "b"], "rows": "split,own", "seeds": "0,1,2", "layers": 0},
         "rank_quality artifacts/a artifacts/b --rows split,own --label b"),
        ("rank_quality-c", {"artifacts": ["a"], "rows": "split,reach", "reach": 12, "seeds": "1"},
         "rank_quality artifacts/a --rows split,reach --reach 12 --seeds 1 --label c"),
        ("overload", {"artifact": "a", "router": True, "ensemble": "recommend"}, "overload artifacts/a --router"),
        ("overload-direct", {"artifact": "a", "router": False}, "overload artifacts/a --label direct"),
        ("sweep", {"artifact": "a", "slo_p99_ms": 50.0, "histories": 9}, "sweep artifacts/a --slo-p99-ms 50"),
        ("rank-b", {"histories": "b", "scale": 100, "slo_ms": 200.0},
         "rank --histories artifacts/b --slo-ms 200 --label b"),
        ("relay-c", {"lengths": "2048", "model": None}, "relay --lengths 2048 --label c"),
        ("rank_quality-d", {"artifacts": ["a"], "rows": "next", "recipe": "r.json"},
         "rank_quality artifacts/a --rows next --recipe r.json --label d"),
    ],
)  # fmt: skip
def test_of_a_result_without_its_command_the_same_is_measured_by_what_is_told(
    root: Path, file: str, settings: dict[str, Any], command: str
) -> None:
    name, _, _ = file.partition("-")
    told = render._command({"benchmark": name, "settings": settings}, root / f"{file}.json")
    assert told == f"genrec bench {command}"


def test_a_served_model_is_the_random_one_unless_it_is_named(root: Path) -> None:
    settings = {"ensemble": "recommend", "beam_width": 64}
    save(root, result("returning", cells={}) | {"settings": {**settings, "artifact": None}})
    save(root, result("returning", "epyc-avx2-2", cells={}) | {"settings": {**settings, "artifact": "mine"}})
    found = render.table("returning", root, root)
    assert "recommend, mine, beam width 64: epyc" in found
    assert "recommend, 31 M parameters, beam width 64: xeon" in found


def test_cells_are_laid_out_and_say_why_they_are_empty(root: Path) -> None:
    save(root, peers("xeon-amx-2"))
    made = write(root)
    text = made["peers.md"]
    assert "2 cores: xeon-amx-2, commit abc1234, `genrec bench peers`" in text
    assert "|  | 255 tokens, BW 32 | 255 tokens, BW 128 | 1023 tokens, BW 32 | 1023 tokens, BW 128 |" in text
    assert "| 30m, slow | 0.2 | > 25 s | 0.2 | > 25 s |" in text
    assert "genrec-triton" in made["peers.svg"] and "xeon-amx-2, 30m, prompt of" in made["peers.svg"]
    save(root, peers("xeon-amx-2", factor=3.0), peers("epyc-avx2-2"))
    again = write(root)["peers.svg"]
    assert again != made["peers.svg"] and "epyc-avx2-2" in again


def test_the_picture_of_relay_has_a_line_for_each_way(root: Path) -> None:
    rates = {"inline": {"1024": 9.0, "4096": 0.0, "mixture": 2.0}, "two servers": {"1024": 12.0}}
    save(root, result("relay", model="128-2", rates=rates))
    drawn = write(root)["relay.svg"]
    assert all(name in drawn for name in (*rates, "xeon-amx-2", "128-2")) and "mixture" not in drawn


def test_rows_of_a_table(root: Path) -> None:
    arms = {"one process": {"capacity": 10.26, "p50_ms": None}, "two": {"capacity": 20.0, "p50_ms": 3.0}}
    save(root, result("ablation", arms=arms) | {"settings": {"artifact": "ml-1m", "beam_width": 128}})
    lines = render.table("ablation", root, root).splitlines()
    assert lines[0].startswith("ml-1m, beam width 128, 16 in flight: xeon-amx-2, commit abc1234")
    assert lines[2:] == [
        "| served by | answers/s | P50 ms, one at a time |",
        "| --- | --- | --- |",
        "| one process | 10.3 | not measured |",
        "| two | 20.0 | 3.0 |",
    ]
    fields = ("ours_mb", "ours_kv_mb", "per_beam_mb", "per_beam_kv_mb")
    sizes = [{"prompt": 256, "beam_width": width, **dict.fromkeys(fields, width)} for width in (1, 2)]
    save(root, result("memory", kv_type="f32", cells=sizes))
    assert render.table("memory", root, root).splitlines()[-1] == "| 256 | 2 | 2.0 | 2.0 | 2.0 | 2.0 |"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- results: nothing -->\n<!-- /results -->", "'nothing'"),
        ("<!-- results: swap -->\n", "not closed"),
        ("<!-- settings -->\n", "not closed"),
    ],
)
def test_a_marker_that_says_nothing_known_is_refused(root: Path, text: str, problem: str) -> None:
    (root / "README.md").write_text(text)
    with pytest.raises(InputError, match=problem):
        render.rendered(root)


def test_a_result_without_the_field_is_refused(root: Path) -> None:
    save(root, result("swap", requests=3))
    with pytest.raises(ArtifactError, match=r"swap\.json: has no swaps"):
        render.rendered(root)
    save(root, result("ablation", arms={}) | {"settings": {"artifact": "ml-1m"}})
    with pytest.raises(ArtifactError, match=r"ablation\.json: lacks what .* 'beam_width'"):
        render.table("ablation", root, root)
    (root / "results" / "xeon-amx-2" / "swap.json").write_text("{")
    with pytest.raises(ArtifactError, match="no JSON"):
        render.rendered(root)


def test_every_table_names_a_benchmark() -> None:
    from perf.kit.benchmarks import BENCHMARKS

    for name in TABLES:
        assert {file.partition("-")[0] for file in render.files_of(name)} <= set(BENCHMARKS), name
