import doctest
import io
import re
from importlib import import_module

from comparisons import STALE, compared, repeated
from rich.console import Console

from manyhands.reports import failed
from manyhands.reports.render.table import table


def test_examples_in_docstrings() -> None:
    for name in ("formatting", "comparison.columns", "page.markup"):
        assert doctest.testmod(import_module(f"manyhands.reports.{name}")).failed == 0


def printed(comparison, width=80) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table(comparison))
    return console.file.getvalue()


def test_figures_answers_and_verdict_in_80_columns() -> None:
    text = printed(
        compared(
            *repeated("single()", 500, workers=1),
            *repeated("allreduce()", 700, workers=4),
            *repeated("ssp(staleness=4)", 1400, workers=4, staleness=STALE),
            *repeated("asynchronous()", 1410, workers=4, accuracy=0.9),
        )
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "live runs on 4 workers" in text
    row = next(line for line in text.splitlines() if line.startswith("allreduce()"))
    assert row.split() == [
        *("allreduce()", "700", "(698–703)", "50", "%,", "slower", "1.40×", "35", "%")
    ]
    assert "99 %, no difference" in text
    assert "-7 points, worse" in text
    assert "are equally fast: no difference larger than 5 %" in " ".join(text.split())


def test_long_names_and_all_figures_are_readable_in_80_columns() -> None:
    long = "hierarchical(outer=diloco(every=50, momentum=0.5), islands=4)"
    text = printed(
        compared(
            *repeated("single()", 500, workers=1),
            *repeated(long, 1400, workers=4, staleness=STALE),
            *repeated("gossip(graph=random_pairs, order=asynchronous)", 700, workers=4),
            price=2.0,
        )
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    words = " ".join(text.split())
    for heading in ("comp wait comm data eval other", "sent/sample staleness 99 % within"):
        assert heading in words
    # No figure is broken: every row of a table ends with whole cells.
    assert re.search(r"70\.0 +10\.0 +10\.0 +5\.0 +5\.0 +0\.0", text)
    assert re.search(r"1\.0 kB +1\.00 +2", text)
    assert "\N{BULLET} Speed: " in text


def test_scaling_by_the_number_of_workers() -> None:
    text = printed(
        compared(*(run for n in (1, 2, 4) for run in repeated("a()", 100 * n**0.5, workers=n)))
    )
    scaling = text[text.index("live scaling") :].splitlines()[2:5]
    assert [re.sub(r" \(.*?\)", "", line).split()[-5:] for line in scaling] == [
        ["1", "100", "1.00×", "100", "%"],
        ["2", "141", "1.41×", "71", "%"],
        ["4", "200", "2.00×", "50", "%"],
    ]
    assert "live runs on 1 worker" not in text


def test_live_before_virtual_each_by_itself() -> None:
    text = printed(compared(*repeated("a()", 10, kind="virtual"), *repeated("a()", 1000)))
    assert text.index("live runs on 2 workers") < text.index("virtual runs on 2 workers")


def test_while_nothing_has_ended_and_when_all_failed() -> None:
    assert "no run has ended yet" in printed(compared())
    lost = failed(
        "failed: worker 1 was killed",
        strategy="b()",
        kind="live",
        workers=2,
        repeat=0,
        seed=0,
        folder="",
    )
    text = printed(compared(lost))
    assert "No run has finished: 1 failed." in text
    assert "b() × 2, repeat 1: failed: worker 1 was killed" in text


def test_no_figure_is_cut_at_80_columns() -> None:
    long = "ssp(staleness=4, servers=2, codec=topk(0.01))"
    text = printed(
        compared(
            *repeated(long, 1_234_567, (1, 1.3, 0.8), accuracy=0.961),
            *repeated("asynchronous(servers=8, codec=int8())", 2_000_000, accuracy=0.95),
            *repeated("allreduce()", 1_000_000, (1, 0.9, 1.2)),
            *repeated("single()", 900_000, workers=1),
        )
    )
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "1,234,567 (987,654–1,604,937)" in text


def test_a_long_name_goes_on_between_its_options() -> None:
    names = (
        "synchronous(codec=topk(fraction=0.01))",
        "diloco(every=8, codec=int4(block=256))",
        "hybrid(data=2, shard=8, outer=diloco(every=32, codec=int4()))",
    )
    text = printed(compared(*(run for name in names for run in repeated(name, 700, workers=4))))
    assert max(map(len, text.splitlines())) <= 80
    for whole in (
        "  codec=topk(fraction=0.01)) ",
        "  codec=int4(block=256)) ",
        "hybrid(data=2, shard=8, ",
        "  outer=diloco(every=32, ",
    ):
        assert any(line.startswith(whole) for line in text.splitlines()), text
