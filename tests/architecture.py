"""The drawing of the house, and what the imports say of it.

    python -m tests.architecture

Prints every arrow that runs against the drawing and every circle of files, then one JSON line. Arrows are derived from
all imports, those of functions and of type checkers too.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A room imports from itself and from rooms before it. The library's own rooms come first, in their order.
LIBRARY = (
    "cores", "kernel_cache", "words", "errors", "report", "metrics", "files", "json_fields", "compiled", "batch_cost",
    "tensor_file", "progress", "process", "leftovers", "hashing", "manifest", "target", "settings",
    "models", "artifact", "catalogue", "kv", "pool", "nodes", "search", "draft", "rank", "nn", "engine", "schedule",
    "steps", "triton",
)  # fmt: skip
ROOMS = (
    *(f"genrec.{name}" for name in LIBRARY),
    "training", "export", "build", "ensembles", "model_repository", "clients", "deploy", "perf", "cli",
)  # fmt: skip
DOORS = {"genrec.__main__"}  # the command `genrec`: it opens the top floor and is imported by nobody
LONGEST = 300


def files() -> dict[str, Path]:
    """Module -> file, of every room."""
    found = {}
    for top in sorted({room.split(".")[0] for room in ROOMS}):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the house that a file imports; of `from package import name` the name's, if it is a module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inner]
        else:
            continue
        yield from (name for name in names if name in known and name != module)


def room_of(module: str) -> str:
    """The room of a module; of what no room holds, the module itself."""
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), module)


def graph() -> dict[str, set[str]]:
    """Module -> modules that it imports."""
    known = files()
    return {
        module: set(imports(module, path, known)) for module, path in known.items() if module not in DOORS
    }


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Arrows against the drawing, and files that no room holds."""
    homeless = [
        f"{module} is in no room" for module in arrows if room_of(module) not in ROOMS and module != "genrec"
    ]
    order = {room: place for place, room in enumerate(ROOMS)}
    pairs = [
        (a, b) for a, targets in arrows.items() for b in sorted(targets) if b != "genrec" and a != "genrec"
    ]
    return homeless + [
        f"{a} -> {b}" for a, b in pairs if order.get(room_of(a), 0) < order.get(room_of(b), len(order))
    ]


def cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that reach each other (Tarjan's strongly connected components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in sorted(arrows.get(node, ())):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in arrows:
        if node not in index:
            visit(node)
    return found


def longest() -> tuple[str, int]:
    """The longest Python file, tests included, and its lines."""
    paths = [*files().values(), *(ROOT / "tests").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in paths}
    return max(lines.items(), key=lambda each: each[1])


def main() -> int:
    """What is wrong, a line each, then one JSON line."""
    arrows = graph()
    against, circles, (name, lines) = upward(arrows), cycles(arrows), longest()
    for line in [*against, *(f"circle: {', '.join(group)}" for group in circles)]:
        print(line)
    facts = {
        "cycles": len(circles), "upward": len(against), "rooms": len(ROOMS), "files": len(arrows),
        "longest_file": {"name": name, "lines": lines},
    }  # fmt: skip
    print(json.dumps(facts))
    return int(bool(against or circles or lines > LONGEST))


if __name__ == "__main__":
    sys.exit(main())
