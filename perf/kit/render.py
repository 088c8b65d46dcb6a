"""Saved results into the tables and pictures of README and docs: what stands there is what was measured.

    python -m perf.kit.render

Fills what lies between `<!-- results: NAME -->` and `<!-- /results -->` (perf/kit/tables.py), and likewise `settings`
and `metrics`, in README.md and docs/*.md; draws docs/peers.svg and docs/relay.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from genrec import metrics, settings
from genrec.errors import ArtifactError, InputError
from perf.kit import peers_picture, relay_picture
from perf.kit.report import RESULTS
from perf.kit.table_forms import Column, Figure, Grid, Table, words
from perf.kit.tables import TABLES

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- (results: (?P<name>[^\n]+?)|(?P<kind>settings|metrics)) -->\n.*?<!-- /(?:results|settings|metrics) -->$",
    re.S | re.M,
)
OPENED = re.compile(r"^<!-- (?:results: [^\n]+?|settings|metrics) -->", re.M)
LISTS = {"settings": settings.table, "metrics": metrics.table}  # of what the code itself says
# docs/<name>.svg, of the results of this name
PICTURES = {"peers": peers_picture.draw, "relay": relay_picture.draw}
Result = dict[str, Any]
# Of results from before commands were kept: benchmarks that take artifacts first, options without which another thing
# would be measured, and what these are where nobody says.
OF_ARTIFACTS = {
    "ablation", "batching", "company", "draft_quality", "engine_ablation", "instances", "next_quality", "overload",
    "passes", "quality", "rank_quality", "recovery", "soak", "stages", "sweep", "window_quality",
}  # fmt: skip
TELLING = (
    "ensemble", "slo_p99_ms", "model", "peers", "router", "item_tokens", "rows", "reach", "layers", "seeds", "scale",
    "slo_ms", "lengths", "recipe",
)  # fmt: skip
USUAL = {
    ("rank", "seeds"): "0", ("rank", "scale"): 100, ("rank", "slo_ms"): 2500.0, ("placement_links", "scale"): 100,
    ("rank_quality", "seeds"): "0,1,2", ("rank_quality", "recipe"): "hstu-next",
    ("relay_fetch", "lengths"): "1024,2048,4096,8192", ("hstu_attention", "lengths"): "512,1024,2048,3000",
}  # fmt: skip


def documents(root: Path) -> list[Path]:
    """Where figures may stand."""
    return [path for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))] if path.is_file()]


def results(root: Path, file: str) -> Iterator[tuple[Path, Result]]:
    """The saved results of this name, machine by machine. Raises ArtifactError."""
    for path in sorted((root / RESULTS).glob(f"*/{file}.json")):
        try:
            yield path, json.loads(path.read_text())
        except ValueError as error:
            raise ArtifactError(path, f"is no JSON: {error}") from error


def files_of(name: str) -> set[str]:
    """The results that a table is made of."""
    table = TABLES[name]
    return {table.file} if isinstance(table, Table | Grid) else {figure.file for figure in table}


def rendered(root: Path) -> dict[Path, bytes]:
    """Every document as its results make it, and the pictures of which there is something to draw.

    Raises InputError for a marker that says nothing known, ArtifactError for a result that lacks a field.
    """
    made = {path: _document(path, root) for path in documents(root)}
    for name, draw in PICTURES.items():
        drawn = [result for _, result in results(root, name)]
        if drawn:
            with tempfile.TemporaryDirectory() as folder:
                picture = Path(folder) / f"{name}.svg"
                draw(drawn, picture)
                made[root / "docs" / picture.name] = picture.read_bytes()
    return made


def _document(path: Path, root: Path) -> bytes:
    text = path.read_text()
    if len(OPENED.findall(text)) != len(BLOCK.findall(text)):
        raise InputError(
            path.name, "has a marker that is not closed", "<!-- /results --> or <!-- /settings -->"
        )

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name and name not in TABLES:
            raise InputError(path.name, f"asks for the table {name!r}", ", ".join(TABLES))
        inside = table(name, root, path.parent) if name else LISTS[match["kind"]]()
        return f"<!-- {match[1]} -->\n{inside.strip()}\n<!-- /{match['kind'] or 'results'} -->"

    return BLOCK.sub(fill, text).encode()


def table(name: str, root: Path, folder: Path) -> str:
    """A table of TABLES in Markdown, for a document in `folder`, or the sentence that nothing is saved yet."""
    wanted = TABLES[name]
    if isinstance(wanted, Table | Grid):
        parts = [_captioned(wanted, result, path) for path, result in results(root, wanted.file)]
    else:
        parts = _by_machine(wanted, root, folder)
    commands = " or ".join(sorted(f"`genrec bench {file} --save`" for file in files_of(name)))
    return "\n\n".join(parts) or f"Not measured at this commit: {commands} does it."


def _captioned(wanted: Table | Grid, result: Result, path: Path) -> str:
    where, about = _at(result, "machine", path), _told(wanted.about, result, path)
    inside = _grid(wanted, result, path) if isinstance(wanted, Grid) else _rows(wanted, result, path)
    return f"{about}: {where['name']}, commit {where['commit']}, `{_command(result, path)}`\n\n{inside}"


def _command(result: Result, path: Path) -> str:
    """What was typed, less what says where and when; of older results its main options, by their settings."""
    if "command" in result:
        return re.sub(r" --(commit|out|limit) \S+", "", str(result["command"]))
    name, settings = result["benchmark"], result.get("settings", {})
    _, _, label = path.stem.partition(f"{name}-")
    of = settings.get("artifacts") or filter(None, [settings.get("artifact")])
    words = [f"artifacts/{artifact}" for artifact in of] if name in OF_ARTIFACTS else []
    if isinstance(whose := settings.get("histories"), str):  # elsewhere it is a number
        words.append(f"--histories artifacts/{whose}")
    for option in TELLING:
        value = settings.get(option)
        if value and value not in ("recommend", USUAL.get((name, option))):
            value = ",".join(value) if isinstance(value, list) else value
            said = "" if value is True else f" {value}".removesuffix(".0")
            words.append(f"--{option.replace('_', '-')}{said}")
    words += [f"--label {label}"] if label else []
    return " ".join(["genrec bench", name, *words])


def _by_machine(figures: Sequence[Figure], root: Path, folder: Path) -> list[str]:
    """A column for each machine, whose cells link to their results, and those links; nothing without results.

    A figure has a row for each thing that its results say it is of. The command is that of the newest of them. One that
    is that of all rows stands above the table.
    """
    saved = {file: list(results(root, file)) for file in dict.fromkeys(figure.file for figure in figures)}
    machines = sorted({result["machine"]["name"] for found in saved.values() for _, result in found})
    rows = []
    for figure in figures:
        told: dict[str, list[tuple[Path, Result]]] = {}
        for path, result in saved[figure.file]:
            told.setdefault(_told(figure.what, result, path), []).append((path, result))
        for what, found in told.items():
            cells, newest = dict.fromkeys(machines, ""), ("", "")
            for path, result in found:
                name = result["machine"]["name"]
                cells[name] = f"[{_written(result, figure.path, figure.form, path)}][{name}/{figure.file}]"
                newest = max(newest, (result.get("date", ""), f"`{_command(result, path)}`"))
            rows.append([what, *cells.values(), newest[1]])
    links = [
        f'[{result["machine"]["name"]}/{file}]: {os.path.relpath(path, folder)} "commit {result["machine"]["commit"]}"'
        for file, found in saved.items()
        for path, result in found
    ]
    if not rows:
        return []
    commands = {row[-1] for row in rows}
    if len(commands) > 1:
        return [_markdown(["", *machines, "command"], rows), "\n".join(links)]
    return [f"By {commands.pop()}:", _markdown(["", *machines], [row[:-1] for row in rows]), "\n".join(links)]


def _rows(wanted: Table, result: Result, path: Path) -> str:
    entries = _at(result, wanted.entries, path)
    named = isinstance(entries, dict)
    keys = list(entries) if named else [str(number) for number in range(len(entries))]

    def cell(column: Column, key: str) -> str:
        return _written(result, column.path, column.form, path, key)

    rows = [[*([key] if named else []), *(cell(column, key) for column in wanted.columns)] for key in keys]
    return _markdown([*([wanted.name] if named else []), *(column.head for column in wanted.columns)], rows)


def _grid(wanted: Grid, result: Result, path: Path) -> str:
    cells: dict[str, dict[str, str]] = {}
    for entry in _at(result, wanted.entries, path):
        told = entry.get("refusal") or _written(entry, wanted.path, wanted.form, path)
        row, column = (_said(text, entry, path) for text in (wanted.row, wanted.column))
        cells.setdefault(row, {})[column] = told
    heads = list(dict.fromkeys(head for row in cells.values() for head in row))
    return _markdown(
        ["", *heads], [[name, *(row.get(head, "") for head in heads)] for name, row in cells.items()]
    )


def _told(text: str, result: Result, path: Path) -> str:
    """What is said of figures, of the result that they are from."""
    return _said(text, {**result, "words": words(result.get("settings", {}))}, path)


def _said(text: str, fields: Result, path: Path) -> str:
    """`text` with what its braces name."""
    try:
        return text.format(**fields)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ArtifactError(path, f"lacks what is to be said of it, {text!r}: {error}") from error


def _written(result: Result, field: str, form: str, path: Path, key: str = "") -> str:
    value = _at(result, field, path, key)
    return "not measured" if value is None else form.format(value)


def _at(result: Result, field: str, path: Path, key: str = "") -> Any:
    value: Any = result
    for part in field.split("/"):
        wanted = key if part == "*" else part
        if value is None:  # nothing of it was measured
            return None
        try:
            value = value[int(wanted)] if isinstance(value, list) else value[wanted]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ArtifactError(path, f"has no {field.replace('*', key)}") from error
    return value


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Write what has changed, and say what."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    for path, content in rendered(ROOT).items():
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
