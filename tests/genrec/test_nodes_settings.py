"""Settings, those of several nodes above all: what is wrong is named, with what is accepted."""

from pathlib import Path

import pytest

from genrec.errors import InputError
from genrec.settings import Settings, chosen_fields

TWO = {"nodes": 2, "node": 1, "store": "10.0.0.1:50051", "store_host": "10.0.0.2:50061"}


def settings(**given):
    return Settings(Path("a"), Path("b"), **given)


def test_two_nodes_are_told_all_of_it_and_one_nothing(monkeypatch):
    two = settings(**TWO)
    for name, value in two.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == two and settings().nodes == 1


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("GENREC_ARTIFACT", "", "GENREC_ARTIFACT: is not set .*the launcher sets it"),
        ("GENREC_BEAM_WIDTH", "many", "GENREC_BEAM_WIDTH: is 'many' .*a whole number"),
    ],
)
def test_a_variable_that_is_missing_or_no_number_is_named(monkeypatch, variable, value, problem):
    for name, given in {**settings().environment(), variable: value}.items():
        monkeypatch.setenv(name, given)
    with pytest.raises(InputError, match=problem):
        Settings.from_environment()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"nodes": 0}, "nodes: is 0 .*1 to 1024"),
        ({"node": 2}, "node: is 2 of 2 nodes .*0 to 1"),
        ({"node": -1}, "node: is -1 .*at least 0"),
        ({"store": ""}, "store: is '' of 2 nodes .*host:port"),
        ({"store": "10.0.0.1"}, "store: is '10.0.0.1' .*host:port"),
        ({"store_host": "10.0.0.1:70000"}, "store_host: is .*host:port"),
        ({"store_host": "a b:1"}, "store_host: is .*host:port"),
        ({"store_mb": 0}, "store_mb: is 0 .*at least 1"),
        ({"pool_fill": "none"}, "pool_fill: is none of 2 nodes .*idle"),
        ({"pool_fill": "always"}, "pool_fill: is 'always' .*none, idle"),
        ({"nodes": 1, "node": 0}, "store: is '10.0.0.1:50051' of 1 nodes"),
        (
            {"nodes": 1, "node": 0, "store": "", "store_host": "", "store_mb": 9},
            "store_mb: is 9 without store",
        ),
        ({"pool_disk_mb": 9}, "pool_disk_mb: is 9 without pool_disk"),
    ],
)
def test_what_is_wrong_is_named(wrong, problem):
    with pytest.raises(InputError, match=problem):
        settings(**{**TWO, **wrong})


@pytest.mark.parametrize("name", [each.name for each in chosen_fields() if each.metadata["low"] is not None])
def test_no_number_is_larger_than_what_it_is_given_to_can_hold(name):
    """Or an engine, an array or a file says so, at the start of a server and in words of its own."""
    with pytest.raises(InputError, match=rf"{name}: is {2**31} \(accepted: .*\)"):
        settings(**{name: 2**31})
