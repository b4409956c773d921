"""HTML put together from elements, so that no text gets into it unescaped."""

from html import escape
from typing import Final

_VOID: Final = frozenset(("br", "meta", "rect", "path", "line", "circle"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str | Markup, **attributes: str | None) -> Markup:
    """An element; text in it is escaped, and what is made by this is not.

    Attributes that are None are left out; `class_` is `class` and `data_x` is `data-x`.

    >>> str(element("p", "a < b", element("b", "!"), class_="note", title=None))
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str | Markup) -> Markup:
    """Several, one after the other."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else escape(child, quote=False) for child in children
        )
    )


def in_script(json: str) -> Markup:
    """JSON that ends no script element, whatever it says."""
    return Markup(json.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
