"""The pages of strategies: titles, links, and pictures that are what the code draws."""

import re
import runpy
from pathlib import Path

import pytest

from manyhands.costs import TensorSize
from manyhands.placements import Placement
from manyhands.protocols import ALL
from manyhands.strategies import CATALOG

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "pictures.py"))


@pytest.mark.parametrize("name", ["synchronous", "gossip_asynchronous", "allreduce"])
def test_drawing_again_gives_the_same_file(name: str) -> None:
    drawn = SCRIPT["draw"](SCRIPT["PICTURES"][name])
    path = DOCS / "strategies" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn, "draw them again: python -m docs.pictures"


def test_the_bandwidths_of_codecs_are_drawn_from_the_stored_figures() -> None:
    drawn = SCRIPT["break_even"].draw()
    stored = (DOCS / "images" / "break-even.svg").read_text("utf-8")
    assert stored == drawn, "draw them again: python -m docs.pictures"


@pytest.mark.parametrize("name", SCRIPT["SCHEDULES"])
def test_schedules_are_drawn_as_their_tables_are(name: str) -> None:
    drawn = SCRIPT["draw_schedule"](*SCRIPT["SCHEDULES"][name])
    path = DOCS / "strategies" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn, "draw them again: python -m docs.pictures"


@pytest.mark.parametrize(
    "page", sorted((DOCS / "strategies").glob("[a-z]*.md")), ids=lambda p: p.stem
)
def test_a_page_has_the_signature_for_a_title_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.splitlines()[0] == f"# {CATALOG.describe(page.stem).signature}"
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link


def test_every_strategy_has_a_page_that_says_where_symbols_are_explained() -> None:
    pages = {page.stem: page for page in (DOCS / "strategies").glob("[a-z]*.md")}
    assert sorted(pages) == sorted(CATALOG.names())
    for page in pages.values():
        assert "(README.md#symbols)" in page.read_text("utf-8"), page.stem


def test_symbols_that_stand_in_headlines_are_explained() -> None:
    readme = (DOCS / "strategies" / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ", readme.split("## Symbols")[1], re.MULTILINE)
    explained = {symbol for row in rows for symbol in re.split(r"[,;] ?", row)}
    assert {"N", "S", "m", "M", "λ_n", "L", "G", "W_then", "s", "k", "H"} <= explained


@pytest.mark.parametrize("name", CATALOG.names())
def test_the_example_of_a_strategy_can_be_read_and_is_the_one_of_its_docstring(name: str) -> None:
    description = CATALOG.describe(name)
    CATALOG.read(description.example)
    written = re.search(r"Example: `", CATALOG[name].__doc__ or "")
    assert not written or description.example in (CATALOG[name].__doc__ or "")


def test_every_picture_is_shown_and_small() -> None:
    shown = {
        name
        for page in (DOCS / "strategies").glob("*.md")
        for name in re.findall(r"\(pictures/(\w+)\.svg\)", page.read_text("utf-8"))
    }
    assert {*SCRIPT["PICTURES"], *SCRIPT["SCHEDULES"]} <= shown
    for name in shown:
        assert (DOCS / "strategies" / "pictures" / f"{name}.svg").stat().st_size < 60_000


WRITTEN = {
    "softsync(wait_for=S)": "softsync(wait_for=3)",
    "ssp(s)": "ssp(staleness=2)",
    "averaging(H)": "averaging(every=8)",
    "local_sgd(H)": "local_sgd(every=8)",
    "diloco(H)": "diloco(every=8)",
    "hierarchical()": "hierarchical(outer=diloco(every=8))",
    "easgd()": "easgd(every=8)",
}
"""Strategies of the table whose parameters are symbols, with values for these."""


def test_the_table_states_the_payload_that_the_code_computes() -> None:
    readme = (DOCS / "strategies" / "README.md").read_text("utf-8")
    table = readme.split("| payload sent, received per worker and step |")[1].split("\n\n")[0]
    symbols = {"m": 4800, "N": 6, "H": 8, "I": 2}
    seen = set()
    for text, cell in re.findall(
        r"^\| \[`([^`]+)`\][^|]*\|[^|]*\| ([^|]*) \|", table, re.MULTILINE
    ):
        formulas = cell.partition(";")[0].translate(str.maketrans({"·": "*", "−": "-"}))
        assert re.fullmatch(r"[mNHI0-9+*/(), -]+", formulas), cell
        sent, received = eval(formulas, {}, symbols)  # noqa: S307 - symbols and signs only
        chosen = CATALOG.read(WRITTEN.get(text, text))
        seen.add(chosen.name)
        if isinstance(chosen, Placement):
            workers = 1 if chosen.name == "single" else symbols["N"]
            forecast = chosen.forecast([TensorSize("w", symbols["m"])], workers)
            assert sent == received == forecast.sent_per_step(workers), text
            continue
        payload = chosen.step_payload(symbols["N"], symbols["m"])
        assert (sent, received) == pytest.approx((payload.sent, payload.received)), text
    assert seen == {protocol.name for protocol in ALL} | {"single", "allreduce"}
