"""Charts as SVG and PDF: every chart of the report, the same numbers, embedded fonts."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from comparisons import STALE, compared, repeated, run

from manyhands.reports import Comparison, Curve
from manyhands.reports.comparison.chart_content import (
    BarChart,
    HistogramChart,
    LineChart,
    PartsChart,
    charts_of,
)
from manyhands.reports.comparison.standings import fields, ordered
from manyhands.reports.page.charts import charts
from manyhands.reports.page.palette import looks
from manyhands.reports.publication import write_charts

LOSS = Curve(seconds=(0.1, 0.2, 0.3), samples=(10, 20, 30), value=(2.5, None, 1.0))


def everything() -> Comparison:
    return compared(
        *repeated("single()", 900, workers=1),
        *repeated("allreduce()", 1500, workers=2),
        *repeated("allreduce()", 2500, workers=4, time_to_target=2.0, loss=LOSS),
        *repeated("ssp(staleness=4)", 3000, (1.0, 1.1), workers=4, staleness=STALE),
        target="accuracy >= 0.97",
    )


def drawn(comparison: Comparison, folder: Path, *formats: str) -> dict[str, bytes]:
    pytest.importorskip("matplotlib")
    paths = write_charts(comparison, folder, formats or ("svg", "pdf"))
    assert sorted(folder.iterdir()) == sorted(paths)
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """All charts; drawing them takes seconds."""
    return drawn(everything(), tmp_path_factory.mktemp("charts"))


def test_every_chart_of_the_report_is_written_in_both_formats(files: dict[str, bytes]) -> None:
    largest = [chart.name for chart in charts_of(fields(everything()))]
    assert largest == [
        *("accuracy-seconds", "accuracy-samples", "training-loss", "time", "time-to-target"),
        *("scaling", "staleness", "traffic"),
    ]
    for name in largest:
        assert f"{name}.svg" in files
        assert f"{name}.pdf" in files
    others = {"accuracy-seconds", "accuracy-samples", "time", "traffic"}
    assert set(files) == {
        *(f"{name}.{kind}" for name in largest for kind in ("svg", "pdf")),
        *(f"{name}-2-workers.{kind}" for name in others for kind in ("svg", "pdf")),
    }


def test_files_are_vectors_with_fonts_embedded_and_without_a_date(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert b"<image" not in content, name
        assert b"/Subtype /Image" not in content, name
        if name.endswith(".pdf"):
            assert content.startswith(b"%PDF-")
            assert b"/FontFile2" in content, "TrueType, embedded"
            assert b"/Type3" not in content
            assert b"CreationDate" not in content
        else:
            root = ET.fromstring(content)  # noqa: S314 - we wrote it
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            tags = {each.tag.rpartition("}")[2] for each in root.iter()}
            assert "path" in tags
            assert "text" not in tags, "letters are paths, so that no font is needed"


def test_page_and_files_draw_the_same_numbers() -> None:
    comparison = everything()
    of_kind = fields(comparison)
    pages = {
        chart.name: chart.drawing["data"] for chart in charts(of_kind, looks(ordered(comparison)))
    }
    for content in charts_of(of_kind):
        data = pages[content.name]
        match content:
            case LineChart():
                shown = [each for each in data if each["name"] != "ideal"]
                for line in content.lines:
                    # On the page whole lines are drawn first, and medians last.
                    trace = next(
                        each
                        for each in shown
                        if each["meta"] == line.strategy
                        and (line.repeat is None) == ("repeat" not in each["hovertemplate"])
                        and (
                            line.repeat is None or f"repeat {line.repeat})" in each["hovertemplate"]
                        )
                    )
                    assert trace["x"] == list(line.x)
                    assert trace["y"] == list(line.y)
                assert len(shown) == len(content.lines)
            case PartsChart():
                assert [trace["x"] for trace in data] == [*map(list, content.parts.values())]
            case BarChart():
                assert data[0]["x"] == list(content.values)
            case HistogramChart():
                assert {t["meta"]: tuple(t["y"]) for t in data} == dict(content.shares)


def test_the_time_to_the_target_has_an_interval_and_only_bars_of_those_who_reached_it() -> None:
    comparison = compared(
        *(
            run("a()", 1000, repeat=repeat, time_to_target=seconds)
            for repeat, seconds in enumerate((2.0, 3.0, 2.5))
        ),
        *repeated("b()", 1000),
        target="accuracy >= 0.97",
    )
    (chart,) = (each for each in charts_of(fields(comparison)) if each.name == "time-to-target")
    assert isinstance(chart, BarChart)
    assert chart.strategies == ("a()",)
    assert (chart.values, chart.low, chart.high) == ((2.5,), (2.0,), (3.0,))
    assert chart.x_title == "seconds until accuracy >= 0.97"


def test_a_median_of_losses_is_one_of_the_same_samples() -> None:
    def lines(*samples: tuple[int, ...]) -> list[int | None]:
        runs = [
            run("a()", 900, repeat=repeat, loss=Curve(seconds=(1.0, 2.0), samples=at, value=(3, 2)))
            for repeat, at in enumerate(samples)
        ]
        (chart,) = (c for c in charts_of(fields(compared(*runs))) if c.name == "training-loss")
        assert isinstance(chart, LineChart)
        return [line.repeat for line in chart.lines]

    assert lines((10, 20), (10, 20)) == [0, 1, None]
    assert lines((10, 20), (10, 30)) == [0, 1]


def test_names_of_others_are_text_and_nothing_else(tmp_path: Path) -> None:
    strange = 'x(a="$\\frac{1}{0}$ <b>&amp;_^")'
    runs = (*repeated(strange, 1000, (1.0,), staleness=STALE), *repeated("a()", 900, (1.0,)))
    for content in drawn(compared(*runs), tmp_path, "svg").values():
        ET.fromstring(content)  # noqa: S314 - we wrote it


def test_a_metric_names_a_file_whatever_it_is_called(tmp_path: Path) -> None:
    curve = Curve(seconds=(1.0,), samples=(1,), value=(0.5,))
    comparison = compared(*repeated("a()", 900, validation={"../top 5": curve}))
    assert "..-top-5-seconds.svg" in drawn(comparison, tmp_path, "svg")


def test_live_and_virtual_have_files_of_their_own(tmp_path: Path) -> None:
    few = {"validation": {}, "sent_per_sample": None}
    both = compared(run("a()", 900, **few), run("a()", 300, kind="virtual", **few))
    names = set(drawn(both, tmp_path, "svg"))
    assert {"live-time.svg", "virtual-time.svg"} <= names
    assert all(re.match("live-|virtual-", name) for name in names)


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'manyhands\[figures\]'"):
        write_charts(everything(), tmp_path)


def test_the_same_results_give_the_same_bytes_and_the_callers_matplotlib_is_left(
    tmp_path: Path,
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    comparison = compared(run("a()", 900, validation={}, sent_per_sample=None))
    before = dict(matplotlib.rcParams)
    first = drawn(comparison, tmp_path / "1")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert drawn(comparison, tmp_path / "2") == first
    assert set(first) == {"time.svg", "time.pdf"}
