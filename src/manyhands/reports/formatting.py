"""Formatting of figures with their units, for the terminal, pages and summaries."""


def plural(number: int | str) -> str:
    """The plural ending of a noun.

    >>> [f"{number} worker{plural(number)}" for number in (1, 2)]
    ['1 worker', '2 workers']
    """
    return "" if str(number) == "1" else "s"


def count(amount: float) -> str:
    """A number of things, or of things per second.

    >>> count(12345.6), count(3.14159)
    ('12,346', '3.14')
    """
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def value(number: float | None) -> str:
    """A metric's value, to four digits.

    >>> value(0.98765), value(None)
    ('0.9877', 'not finite')
    """
    if number is None:
        return "not finite"
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def duration(seconds: float) -> str:
    """A time, in seconds.

    >>> duration(1234.56), duration(0.0123)
    ('1,234.6 s', '0.0123 s')
    """
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds:.3g} s"


def percent(share: float) -> str:
    """A share of 1.

    >>> percent(0.0512), percent(0.51)
    ('5.1 %', '51 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def size(amount: float) -> str:
    """Bytes.

    >>> size(999), size(69_900)
    ('999 B', '69.9 kB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.1f} {unit}"


def listed(names: list[str]) -> str:
    """Several names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def folded(name: str, longest: int) -> list[str]:
    """A strategy's name in lines of at most so many letters, divided between its options.

    >>> folded("ssp(staleness=4)", 24)
    ['ssp(staleness=4)']
    >>> folded("hybrid(data=2, outer=diloco(every=32, codec=int4()))", 24)
    ['hybrid(data=2,', '  outer=diloco(every=32,', '  codec=int4()))']
    """
    lines = []
    rest, indent = name, ""
    while len(indent + rest) > longest:
        place = _place_to_break(rest, longest - len(indent))
        lines.append((indent + rest[:place]).rstrip())
        rest, indent = rest[place:].lstrip(), "  "
    return [*lines, indent + rest]


def _place_to_break(text: str, room: int) -> int:
    """Where a line ends: at a comma if there is one, as far out and as late as possible."""
    depth, best, found = 0, (0, 0), room
    for place, letter in enumerate(text[:room], 1):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        rank = {",": 2, "(": 1, "=": 0}.get(letter)
        if rank is None or text[place : place + 1] == ")":
            continue
        score = (rank, -depth)
        if place > 1 and (found == room or score >= best):
            best, found = score, place
    return found
