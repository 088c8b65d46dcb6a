"""What `--recipe` names: a model with its usual settings, or a JSON file that changes some of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from genrec.errors import InputError
from genrec.files import read_json

GENERATOR, DRAFT, RANKER, HSTU, HSTU_NEXT = "generator", "draft", "ranker", "hstu-ranker", "hstu-next"
MOST_AVERAGING = 0.99999  # decay of an average of weights
RECIPES = (GENERATOR, DRAFT, RANKER, HSTU, HSTU_NEXT)
Settings = TypeVar("Settings")


def read_recipe(named: str) -> tuple[str, dict[str, Any]]:
    """Which model, and what a file says of its settings: {"recipe": "hstu-ranker", "accumulate": 4}.

    Raises InputError, ArtifactError.
    """
    if named in RECIPES:
        return named, {}
    accepted = ", ".join(RECIPES)
    if not named.endswith(".json"):
        raise InputError("recipe", f"is {named!r}", f"{accepted}, or the name of a file that ends in .json")
    said = read_json(Path(named))
    if not isinstance(said, dict) or said.get("recipe") not in RECIPES:
        raise InputError(named, "does not say which model it is for", f'an object with "recipe": {accepted}')
    return said.pop("recipe"), said


def changed(settings: Settings, said: Mapping[str, Any], other: Iterable[str] = ()) -> Settings:
    """`settings` with what a file says; `other` settings are not of training. Raises InputError."""
    known = {
        each.name: type(getattr(settings, each.name)) for each in fields(settings) if each.name not in other
    }  # type: ignore[arg-type]
    for name, value in said.items():
        if name not in known:
            raise InputError(f"recipe, {name}", "is no setting", ", ".join(known))
        if known[name] is tuple:
            if not isinstance(value, list) or any(type(each) is not int for each in value):
                raise InputError(f"recipe, {name}", f"is {value!r}", "a list of whole numbers")
            continue
        kinds = (int, float) if known[name] is float else (known[name],)
        if type(value) not in kinds:
            raise InputError(f"recipe, {name}", f"is {value!r}", f"a value of type {known[name].__name__}")
    said = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return replace(settings, **said)  # type: ignore[type-var]


def check_least(settings: object, least: Mapping[str, int]) -> None:
    """Whole numbers of 31 bits, as lengths of tensors are at most. Raises InputError."""
    for name, bound in least.items():
        if not bound <= getattr(settings, name) < 2**31:
            raise InputError(name, f"is {getattr(settings, name)}", f"a whole number, {bound} to {2**31 - 1}")


def check_within(settings: object, most: Mapping[str, float]) -> None:
    """Numbers from 0 on. Raises InputError, for NaN too."""
    for name, bound in most.items():
        value = getattr(settings, name)
        if not 0 <= value <= bound or math.isinf(value):
            raise InputError(name, f"is {value}", f"a number, 0 to {bound:g}")
