"""What a notebook shows: nothing in a text or a page becomes markup of the notebook."""

from html.parser import HTMLParser
from pathlib import Path

import torch

import manyhands as mh
from manyhands.reports.render.notebook import page_html


class Parts(HTMLParser):
    """The elements of a document, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_is_shown_in_a_frame_that_reaches_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    content = '<script>alert("&amp; \'")</script></iframe><b>'
    page.write_text(content, encoding="utf-8")
    parts = Parts(page_html("a < b & <i>c</i>", page))
    assert [name for name, _ in parts.elements] == ["pre", "iframe"]
    assert parts.words == "a < b & <i>c</i>"
    frame = parts.elements[1][1]
    assert frame["srcdoc"] == content
    assert frame["sandbox"] == "allow-scripts"


def test_without_a_page_the_text_remains(tmp_path: Path) -> None:
    for page in (None, tmp_path / "gone.html"):
        assert [name for name, _ in Parts(page_html("a", page)).elements] == ["pre"]


def test_a_run_is_a_table_of_its_summary(tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(torch.eye(2).repeat(8, 1), torch.arange(16) % 2)
    job = mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        global_batch=8,
        epochs=1,
    )
    run = mh.simulate(job, "ssp()", workers=2, output=tmp_path / "<run>")
    parts = Parts(run._repr_html_())
    assert {name for name, _ in parts.elements} == {"table", "caption", "tbody", "tr", "th", "td"}
    assert parts.words.startswith("ssp() on 2 virtual workers, 1 host: finished")
    assert "<run>" in parts.words
    assert "\N{NO-BREAK SPACE}" not in parts.words
