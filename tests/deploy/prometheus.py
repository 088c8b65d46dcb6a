"""What Prometheus would read: a scrape as numbers, and the series that a query names."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

SERIES = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
SELECTOR = re.compile(r"(?<![\w:])((?:genrec|nv|haproxy)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")
ADDED = {"job", "instance", "catalogue"}  # by Prometheus itself, the last by `genrec route --targets`


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    return [
        Sample(found["name"], dict(LABEL.findall(found["labels"] or "")), float(found["value"]))
        for found in SERIES.finditer(text)
    ]


def scrape(metrics_url: str) -> list[Sample]:
    with urllib.request.urlopen(f"http://{metrics_url}/metrics", timeout=10) as response:
        return parse(response.read().decode())


class Selector(NamedTuple):
    """A series that a query names, with what it asks of labels: (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def chosen(self, samples: list[Sample]) -> Iterator[Sample]:
        return (
            each
            for each in samples
            if each.name == self.name
            and all(map(each.labels.__contains__, self._labels()))
            and self._fits(each)
        )

    def _labels(self) -> list[str]:
        return [label for label, _, _ in self.matchers]

    def _fits(self, sample: Sample) -> bool:
        for label, operator, value in self.matchers:
            pattern = value if operator.endswith("~") else re.escape(value)
            if bool(re.fullmatch(pattern, sample.labels[label])) == operator.startswith("!"):
                return False
        return True


def selectors(query: str) -> list[Selector]:
    return [Selector(name, tuple(MATCHER.findall(labels))) for name, labels in SELECTOR.findall(query)]


def grouped_by(query: str) -> set[str]:
    """Labels that a query groups by, without those that a scrape lacks."""
    labels = {label.strip() for each in GROUPING.findall(query) for label in each.split(",")}
    return labels - ADDED


def total(samples: list[Sample], name: str, **labels: str) -> float:
    """The sum of a series over all labels that are not given. Fails when there is none of it."""
    found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    assert found, f"no {name} with {labels}"
    return sum(found)
