"""Draws docs/images/break-even.svg from docs/break-even.json, as `python -m docs.pictures` does.

The figures are measured: `manyhands codecs examples/mnist.py --json > docs/break-even.json`.
"""

from __future__ import annotations

import json
from html import escape
from math import log10
from pathlib import Path

from manyhands.units import bandwidth_words

_HERE = Path(__file__).parent
FIGURES = _HERE / "break-even.json"
PICTURE = _HERE / "images" / "break-even.svg"
_LEFT, _WIDTH, _ROW, _TOP = 190, 470, 22, 46
_FIRST, _LAST = 7, 11
"""The axis, in powers of ten bits per second."""


def draw() -> str:
    """A bar per codec, up to the bandwidth below which it pays; the axis is logarithmic."""
    found = json.loads(FIGURES.read_text("utf-8"))
    codecs = sorted(found["codecs"], key=lambda one: -(one["pays_below"] or 0))
    height = _TOP + _ROW * len(codecs) + 14
    heading = f"Codecs pay below this bandwidth: gradients of {found['bytes'] / 1e6:.1f} MB"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 110} {height}"',
        ' font-family="sans-serif" font-size="12" fill="#24292f">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="12" y="18" font-weight="bold">{heading}</text>',
    ]
    for power in range(_FIRST, _LAST + 1):
        x = _place(10**power)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 8}" stroke="#d0d7de"/>'
            f'<text x="{x:.1f}" y="{_TOP - 10}" text-anchor="middle" fill="#57606a">'
            f"{bandwidth_words(10**power / 8)}</text>"
        )
    for row, one in enumerate(codecs):
        y = _TOP + _ROW * row
        bits = 8 * (one["pays_below"] or 0)
        end = _place(bits) if bits else _LEFT
        said = bandwidth_words(bits / 8) if bits else "never"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(one["codec"])}</text>'
            f'<rect x="{_LEFT}" y="{y + 3}" width="{end - _LEFT:.1f}" height="{_ROW - 8}" '
            f'fill="#4477aa"/><text x="{end + 6:.1f}" y="{y + 14}">{said}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _place(bits: float) -> float:
    share = (log10(bits) - _FIRST) / (_LAST - _FIRST)
    return _LEFT + _WIDTH * min(1.0, max(0.0, share))
