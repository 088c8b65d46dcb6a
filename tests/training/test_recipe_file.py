"""A recipe file names a model and changes settings of it; what it says wrong is told by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from genrec.errors import InputError
from training.generator.draft import DraftSettings
from training.generator.recipes import OF_DATA, Recipe
from training.hstu.settings import HstuSettings
from training.ranker.run import RankerSettings
from training.recipe_file import changed, read_recipe

USUAL = {
    "hstu-ranker": HstuSettings(), "ranker": RankerSettings(), "generator": Recipe(), "draft": DraftSettings(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            {"recipe": "hstu-ranker", "accumulate": 0},
            r"accumulate: is 0 \(accepted: a whole number, 1 to 2147483647\)",
        ),
        ({"recipe": "generator", "max_history": 10**20}, "max_history: is 1000"),
        ({"recipe": "hstu-ranker", "accumulate": 2**31}, "accumulate: is 2147483648 "),
        ({"recipe": "hstu-ranker", "tasks": 4}, r"tasks: is 4 \(accepted: a list of whole numbers\)"),
        ({"recipe": "hstu-ranker", "tasks": [4, True]}, r"tasks: is \[4, True\] \(accepted: a list of whole"),
        ({"recipe": "hstu-ranker", "averaging": 1.0}, "averaging: is 1.0"),
        ({"recipe": "hstu-ranker", "averaging": 0.0}, r"averaging: is 0 \(accepted: a number above 0"),
        ({"recipe": "ranker", "teacher": -5.0}, r"teacher: is -5.0 \(accepted: a number, 0 to 100\)"),
        ({"recipe": "generator", "warm_start": float("nan")}, "warm_start: is nan"),
        ({"recipe": "hstu-ranker", "tokens": 1.5}, r"tokens: is 1.5 \(accepted: a value of type int\)"),
        ({"recipe": "hstu-ranker", "bf16": 1}, "bf16: is 1"),
        ({"recipe": "hstu-ranker", "experts": 65}, r"experts: is 65 \(accepted: a whole number, 0 to 64\)"),
        ({"recipe": "hstu-ranker", "experts": -1}, "experts: is -1"),
        ({"recipe": "hstu-ranker", "token": 1}, "token: is no setting"),
        ({"recipe": "ranker", "batch": 0}, "batch: is 0"),
        ({"recipe": "ranker", "reach": 10**30}, "reach: is 1000"),
        (
            {"recipe": "ranker", "reach": 3},
            r"reach: is 3 \(accepted: an even number of tokens below 2147483648, or 0 for all\)",
        ),
        ({"recipe": "generator", "learning_rate": float("nan")}, "learning_rate: is nan"),
        ({"recipe": "generator", "dropout": -1}, r"dropout: is -1 \(accepted: a number, 0 to 0.99\)"),
        ({"recipe": "generator", "codebook_sizes": [4, 4]}, "codebook_sizes: is no setting"),
        ({"recipe": "draft", "epochs": -1}, r"epochs: is -1 \(accepted: a whole number, 0 to 2147483647\)"),
        ({"recipe": "draft", "validity": -0.5}, r"validity: is -0.5 \(accepted: a number, 0 to 100\)"),
        ({"recipe": "draft", "generator_rate": 2}, r"generator_rate: is 2 \(accepted: a number, 0 to 1\)"),
        (
            {"recipe": "draft", "generator_rate": 0.5},
            r"generator_rate: is 0.5, and the generator does not learn",
        ),
        ({"recipe": "draft", "joint": False, "dropout": 0.1}, r"dropout: is 0.1, .* \(accepted: joint: true"),
        ({"recipe": "draft", "joint": 1}, r"joint: is 1 \(accepted: a value of type bool\)"),
        (
            {"recipe": "draft", "seed": 1},
            r"seed: is no setting \(accepted: joint, epochs, batch_items, learning_r",
        ),
        ({"epochs": 3}, "does not say which model it is for"),
        ([], "does not say"),
    ],
)
def test_a_recipe_file_is_checked(tmp_path: Path, said: object, problem: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(said))
    with pytest.raises(InputError, match=problem):
        model, changes = read_recipe(str(path))
        changed(USUAL[model], changes, OF_DATA)


def test_it_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"recipe": "hstu-ranker", "accumulate": 4, "weight_decay": 1, "tasks": [4, 5]}')
    model, changes = read_recipe(str(path))
    assert model == "hstu-ranker"
    assert changed(HstuSettings(), changes) == replace(
        HstuSettings(), accumulate=4, weight_decay=1, tasks=(4, 5)
    )
    assert read_recipe("ranker") == ("ranker", {})
    with pytest.raises(InputError, match="recipe: is 'rankers'"):
        read_recipe("rankers")
