"""Tables in the documentation are what the stored results say."""

import pytest
from benchmarks.figures import PAGE, kept

from benchmarks import sites, stragglers, twins


@pytest.mark.parametrize(
    "benchmark", [sites, stragglers, twins], ids=lambda module: module.__name__
)
def test_the_page_shows_the_stored_results(benchmark) -> None:
    name = benchmark.__name__.rpartition(".")[2]
    stored = kept(name)
    assert stored["benchmark"] == name
    assert stored["machine"]["cores"] > 0
    assert benchmark.table(stored["figures"]) in PAGE.read_text("utf-8"), (
        f"make them again: python -m benchmarks.{name}"
    )
