"""Bars as SVG inside HTML: stacked shares, plain bars, histograms. Numbers in, markup out.

Colours are classes of the page's style sheet, so that they follow light and dark.
"""

from collections.abc import Sequence
from html import escape

WIDTH, ROW, GAP, LABEL, VALUE = 720, 22, 10, 150, 170
HISTOGRAM_HEIGHT, HEADROOM = 130, 16


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, float]], float, str]], what: str) -> str:
    """Return one bar for each (name, parts of (class, amount), whole, words at its end)."""
    inside = WIDTH - LABEL - VALUE
    marks = []
    for at, (name, parts, whole, words) in enumerate(rows):
        y = at * (ROW + GAP)
        marks.append(_text(LABEL - 8, y, name, "end"))
        marks.append(f'<rect class="free" x="{LABEL}" y="{y}" width="{inside}" height="{ROW}"/>')
        x = float(LABEL)
        for style, amount in parts:
            width = min(inside * amount / whole if whole else 0.0, LABEL + inside - x)
            marks.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}">'
                f"<title>{escape(name)}, {escape(style)}: {amount:,.0f}</title></rect>"
            )
            x += width
        marks.append(_text(WIDTH - VALUE + 8, y, words, "start"))
    return _svg(marks, len(rows) * (ROW + GAP), what)


def bars(rows: Sequence[tuple[str, float | None, str]], most: float, what: str) -> str:
    """Return a bar for each (name, amount or None, words), `most` long at the utmost."""
    parts = [
        (name, [] if amount is None else [("bar", amount)], most, words)
        for name, amount, words in rows
    ]
    return stacked(parts, what)


def histogram(buckets: Sequence[tuple[str, float]], what: str) -> str:
    """Return columns of (label of the upper bound, count), their labels below."""
    most = max((count for _, count in buckets), default=0) or 1
    step = WIDTH / max(len(buckets), 1)
    marks = []
    for at, (label, count) in enumerate(buckets):
        height = HISTOGRAM_HEIGHT * count / most
        x, y = at * step, HEADROOM + HISTOGRAM_HEIGHT - height
        marks.append(
            f'<rect class="bar" x="{x + 2:.1f}" y="{y:.1f}" width="{step - 4:.1f}" '
            f'height="{height:.1f}"><title>up to {escape(label)}: {count:,.0f}</title></rect>'
        )
        if count:
            marks.append(_small(x + step / 2, y - 4, f"{count:,.0f}"))
        marks.append(_small(x + step / 2, HEADROOM + HISTOGRAM_HEIGHT + 16, label))
    return _svg(marks, HEADROOM + HISTOGRAM_HEIGHT + 24, what)


def _svg(marks: Sequence[str], height: float, what: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(what)}" viewBox="0 0 {WIDTH} {max(height, 1):.0f}">'
        + "".join(marks)
        + "</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.0f}" y="{y + ROW * 0.7:.0f}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def _small(x: float, y: float, words: str) -> str:
    return (
        f'<text class="small" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(words)}</text>'
    )
