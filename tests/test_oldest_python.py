"""What Python 3.10 refuses when a module is imported, and the Python of these tests may not."""

import ast
import sys
from collections.abc import Iterator

from tests import architecture

GENERIC = {"typing", "collections", "collections.abc"}  # of their classes Python 3.10 takes parameters


def refused(source: str) -> Iterator[str]:
    """Bases of classes that are other classes of the standard library, with parameters."""
    tree = ast.parse(source)
    came = {}  # name -> module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            came.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            came.update({alias.asname or alias.name: node.module for alias in node.names})
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if isinstance(base, ast.Subscript):
                name = ast.unparse(base.value)
                module = came.get(name) or came.get(name.rpartition(".")[0], "")
                if module.partition(".")[0] in sys.stdlib_module_names and module not in GENERIC:
                    yield ast.unparse(base)


def test_no_class_of_the_standard_library_is_given_parameters_that_it_does_not_take() -> None:
    found = {name: list(refused(path.read_text())) for name, path in architecture.files().items()}
    assert {name: bases for name, bases in found.items() if bases} == {}


def test_what_is_refused_is_seen() -> None:
    """`logging.LoggerAdapter` takes a parameter since Python 3.11."""
    for wrong in (
        "import logging\nclass A(logging.LoggerAdapter[int]): pass",
        "from logging import LoggerAdapter as L\nclass A(L[int]): pass",
    ):
        assert len(list(refused(wrong))) == 1
    right = "from collections.abc import Sequence\nfrom typing import Generic\n"
    assert not list(refused(right + "class A(Sequence[int], Generic[T], list[int], Ours[int]): pass"))
