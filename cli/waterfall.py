"""A request's spans as a waterfall: text for a terminal, SVG for a page."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from cli.spans import Span

BAR = 48  # columns
ROW, LABEL, WIDTH, FIGURES = 22, 210, 640, 150  # pixels
COLOURS = {"queue": "#e0a44a", "compute": "#3b78b8", "answers later": "#5fa3a3"}
COLOUR = "#b8c0c8"  # of what is made of others


def rows(span: Span, depth: int = 0) -> Iterator[tuple[int, Span]]:
    """The span and all within it, from the outside in and in order of time, with their depths."""
    yield depth, span
    for part in span.parts:
        yield from rows(part, depth + 1)


def as_text(whole: Span) -> str:
    """A line per span: name, start and duration in ms, bar."""
    total = max(whole.end - whole.start, 1)
    lines = [f"{'span':30} {'start ms':>9} {'took ms':>9}"]
    for depth, span in rows(whole):
        first = round(BAR * (span.start - whole.start) / total)
        size = max(round(BAR * (span.end - span.start) / total), 1)
        bar = " " * min(first, BAR - 1) + "█" * size
        start, took = (span.start - whole.start) / 1e6, (span.end - span.start) / 1e6
        lines.append(f"{'  ' * depth + span.name:30} {start:9.2f} {took:9.2f}  {bar}")
    return "\n".join(lines)


def as_svg(whole: Span) -> str:
    """The same as a picture that stands alone."""
    found = list(rows(whole))
    total = max(whole.end - whole.start, 1)
    height, width = ROW * len(found) + 20, LABEL + WIDTH + FIGURES
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{escape(whole.name)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, (depth, span) in enumerate(found):
        y, x = 10 + ROW * row, LABEL + WIDTH * (span.start - whole.start) / total
        size = max(WIDTH * (span.end - span.start) / total, 1.0)
        took = (span.end - span.start) / 1e6
        parts += [
            f'<text x="{8 + 14 * depth}" y="{y + 15}" fill="#1c2126">{escape(span.name)}</text>',
            f'<rect x="{x:.1f}" y="{y + 4}" width="{size:.1f}" height="{ROW - 8}" rx="2" '
            f'fill="{COLOURS.get(span.name, COLOUR)}"/>',
            f'<text x="{LABEL + WIDTH + 8}" y="{y + 15}" fill="#4a545e">{took:.2f} ms</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
