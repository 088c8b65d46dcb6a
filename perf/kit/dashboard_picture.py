"""The dashboard's panels, drawn from a Prometheus that has scraped a server: a look where Grafana is not at hand.

python -m perf.kit.dashboard_picture http://127.0.0.1:9090 docs/dashboard.png --minutes 5

Panels and queries are those of `deploy/dashboards/genrec.json`; a panel that Prometheus has no numbers for is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.parse
from pathlib import Path
from typing import Any

from deploy.dashboards.render import DASHBOARD
from deploy.probe import ask
from perf.kit import plot

ACROSS, POINTS = 3, 120
MOST = 6  # lines of a panel: those that come highest
Line = tuple[str, list[float], list[float]]  # name, minutes before now, values


def draw(url: str, minutes: float, path: Path) -> int:
    """Write the picture to `path`. Returns the number of panels that it has; of none no file is written."""
    panels, now = json.loads(DASHBOARD.read_text())["panels"], time.time()
    found = {panel["title"]: lines_of(url, panel, minutes, now) for panel in panels}
    shown = {title: lines for title, lines in found.items() if lines}
    if not shown:
        return 0
    rows = -(-len(shown) // ACROSS)
    figure, axes = plot.panels(rows, ACROSS, (4.6 * ACROSS, 2.5 * rows), squeeze=False)
    for axis, (title, lines) in zip(axes.flat, shown.items(), strict=False):
        for name, ago, values in sorted(lines, key=lambda line: -max(line[2]))[:MOST]:
            axis.plot(ago, values, label=name)
        axis.set_title(title, fontsize="medium")
        axis.set(xlabel="minutes", ylim=(0, None))
    for axis in axes.flat[len(shown) :]:
        figure.delaxes(axis)
    plot.save(figure, path)
    return len(shown)


def lines_of(url: str, panel: dict[str, Any], minutes: float, now: float) -> list[Line]:
    """Every series of the panel's queries that has a number; one may have ended long before now."""
    lines = []
    for target in panel["targets"]:
        for series in over_time(url, target["expr"], minutes, now):
            points = [(float(at), float(value)) for at, value in series["values"] if value != "NaN"]
            if points:
                name = label_of(target["legendFormat"], series["metric"])
                lines.append((name, [(at - now) / 60 for at, _ in points], [value for _, value in points]))
    return lines


def label_of(legend: str, labels: dict[str, str]) -> str:
    """`{{name}}` of a legend as Grafana fills it in."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def over_time(url: str, query: str, minutes: float, now: float) -> list[dict[str, Any]]:
    """The series of a query over the minutes before now, as Prometheus' API gives them."""
    seconds = 60 * minutes
    asked = {"query": query, "start": now - seconds, "end": now, "step": max(seconds / POINTS, 1.0)}
    with ask(f"{url}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=10) as answer:
        series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return series


def main() -> None:
    """Draw it, and say how many panels have numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0, help="back from now")
    a = parser.parse_args()
    print(f"{draw(a.url, a.minutes, a.picture)} panels in {a.picture}")


if __name__ == "__main__":
    main()
