"""Keys to the drawings: a strategy's colour, dash and mark; colours of parts of the time."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from manyhands.reports.comparison.columns import PART_TITLES
from manyhands.reports.page.markup import Markup, element, joined
from manyhands.reports.page.palette import PARTS, Look

_MARKS: Final = {
    "circle": '<circle cx="12" cy="6" r="3.6"/>',
    "circle-open": '<circle cx="12" cy="6" r="3.2" fill="#fff" stroke-width="1.6"/>',
    "square": '<path d="M8.6 2.6h6.8v6.8h-6.8z"/>',
    "diamond": '<path d="M12 1.6L16.4 6L12 10.4L7.6 6z"/>',
    "triangle-up": '<path d="M12 1.6L16.4 9.4H7.6z"/>',
    "cross": '<path d="M10.5 1.8h3v2.7h2.7v3h-2.7v2.7h-3V7.5H7.8v-3h2.7z"/>',
    "x": '<path d="M9.6 1.8L12 4.2l2.4-2.4 1.8 1.8L13.8 6l2.4 2.4-1.8 1.8L12 7.8l-2.4 2.4-1.8-1.8L10.2 6 7.8 3.6z"/>',  # noqa: E501 - one path
    "star": '<path d="M12 1l1.4 3.3 3.6.3-2.7 2.3.8 3.5L12 8.5 8.9 10.4l.8-3.5L7 4.6l3.6-.3z"/>',
}
_LONG_VALUE: Final = re.compile(r"(?<==)(?=[^,()]{7}|[^,()]+\()")
"""Where an option's value of some length begins."""


def swatch(look: Look) -> Markup:
    """A line with its mark, as SVG."""
    dash = f' stroke-dasharray="{look.dash.replace("px", "")}"' if look.dash else ""
    return Markup(
        f'<svg class="swatch" viewBox="0 0 24 12" aria-hidden="true" fill="{look.colour}" '
        f'stroke="{look.colour}" stroke-width="0"><path d="M0 6h24" fill="none" '
        f'stroke-width="2.2"{dash}/>{_MARKS[look.symbol]}</svg>'
    )


def named(strategy: str, looks: Mapping[str, Look]) -> Markup:
    """A strategy's swatch and name; a long name may break before its options, a long value too."""
    name, opening, options = strategy.partition("(")
    parts = _LONG_VALUE.split(opening + options) if len(strategy) > 14 else []
    rest = [each for part in parts for each in (Markup("<wbr/>"), part)]
    return joined(swatch(looks[strategy]), name, *(rest or [opening + options]))


def bands(parts: Collection[str], *, hatched: bool = False) -> Markup:
    """The colours of these parts of the time."""
    return element(
        "p",
        *(
            element(
                "span",
                element("i", style=f"background-color:{colour}", class_=part),
                PART_TITLES[part].lower(),
            )
            for part, colour in PARTS.items()
            if part in parts
        ),
        class_="bands hatched" if hatched else "bands",
    )
