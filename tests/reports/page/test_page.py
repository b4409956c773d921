"""The page: what it says, that it says what the traces say, and that it needs nobody."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from comparisons import STALE, compared, repeated, run
from raw_traces import Raw, median
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.reports import Comparison, Machine, failed
from manyhands.reports.comparison.load_comparisons import gather
from manyhands.reports.comparison.standings import fields
from manyhands.reports.page import write_page, write_page_of
from manyhands.reports.page.charts import charts
from manyhands.reports.page.palette import looks

LARGEST = 6_000_000


class Page(HTMLParser):
    """A page as a program reads it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.cells: dict[tuple[str, str, int], list[float]] = {}
        self.links: list[str] = []
        self.text: list[str] = []
        self.json = ""
        self._stack: list[tuple[str, dict[str, str]]] = []
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        assert not [tag for tag, _ in self._stack if tag not in {"meta", "br"}], "all is closed"

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        if tag not in {"meta", "br", "wbr"}:
            self._stack.append((tag, attributes))
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        if "data-value" in attributes:
            key = (
                attributes["data-column"],
                attributes["data-strategy"],
                int(attributes["data-workers"]),
            )
            self.cells.setdefault(key, []).append(float(attributes["data-value"]))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self._stack.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self._stack[-1] if self._stack else ("", {})
        if attributes.get("type") == "application/json":
            self.json = data
        elif tag not in {"script", "style"}:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).replace("\N{NO-BREAK SPACE}", " ").split())

    @property
    def drawings(self) -> list[dict]:
        return json.loads(self.json)


def drawn(comparison: Comparison, folder: Path) -> Page:
    path = folder / "report.html"
    write_page(comparison, path)
    assert path.stat().st_size < LARGEST
    assert [each.name for each in folder.iterdir() if each.is_file()] == ["report.html"]
    return Page(path)


def everything() -> Comparison:
    """A comparison in which there is all that a page can show."""
    lost = failed(
        "failed: worker 1 on hostB: killed, <probably> out of memory",
        strategy="ssp(staleness=4)",
        kind="live",
        workers=4,
        repeat=2,
        seed=2,
        folder="runs/lost",
    )
    return compared(
        *repeated("single()", 900, workers=1, cost=0.1),
        *repeated("allreduce()", 1500, workers=2),
        *repeated("allreduce()", 2500, workers=4, time_to_target=2.0),
        *repeated("ssp(staleness=4)", 3000, (1.0, 1.01), workers=4, staleness=STALE),
        lost,
        *repeated("asynchronous()", 400, workers=4, kind="virtual", staleness=STALE),
        *repeated("allreduce()", 300, workers=4, kind="virtual"),
        machine=Machine(host="hostA", cpu="A Processor", cores=2, memory=8 << 30),
        processes_per_core=2.5,
        paced="worker 2 computes 4 times as long",
        network="100mbit, every worker in a network namespace of its own",
        budget="6,000 samples",
        target="accuracy >= 0.97",
        script="mnist.py",
        created="2026-01-31T12:00:00Z",
        manyhands="0.1.0",
        torch="2.13.0",
        price=0.5,
        currency="EUR",
    )


def test_a_page_with_everything(tmp_path) -> None:
    page = drawn(everything(), tmp_path)
    for words in (
        "4 strategies on mnist.py",
        "A Processor",
        "8.6 GB",
        "2.5",
        "worker 2 computes 4 times as long",
        "100mbit, every worker in a network namespace of its own",
        "0.5 EUR per worker and hour",
        "2026-01-31 12:00:00 UTC",
        "torch 2.13.0",
        "killed, <probably> out of memory",
        "1 run failed",
        "Virtual",
    ):
        assert words in page.words, words
    assert "<probably>" not in page.source
    sections = re.findall(r'<section class="part (\w+)"', page.source)
    assert sections == ["live", "virtual"]


def test_every_figure_of_the_requirement_has_a_unit_and_an_explanation(tmp_path) -> None:
    page = drawn(everything(), tmp_path)
    columns = {column for column, _, _ in page.cells}
    assert columns >= {
        *("rate", "speedup", "efficiency", "time_to_target", "final_accuracy", "within"),
        *("sent_per_sample", "compute", "wait", "communication", "data"),
        *("staleness_mean", "staleness_p99", "repeated", "lost", "cost"),
    }
    rows = re.findall(r'<th scope="row">(.*?)</th>', page.source)
    assert rows
    for row in rows:
        assert re.search(r"<small>[^<]{10,}[.]</small>", row), row
        assert '<span class="unit">' in row, row


def test_charts_are_what_plotly_knows_and_a_strategy_has_one_colour(tmp_path) -> None:
    from plotly import graph_objects

    page = drawn(everything(), tmp_path)
    colours: dict[str, set[str]] = {}
    for drawing in page.drawings:
        graph_objects.Figure(drawing)
        for trace in drawing["data"]:
            if "meta" in trace:
                colours.setdefault(trace["meta"], set()).add(trace["marker"]["color"])
    assert all(len(of_one) == 1 for of_one in colours.values())
    assert len(set.union(*colours.values())) == len(colours) == 4
    names = re.findall(r"<figcaption><h3>([^<]*)</h3>", page.source)
    live = names[: names.index("Accuracy over time", 1)]
    assert live == [
        "Accuracy over time",
        "Accuracy over samples",
        "Where the time went",
        "Time to target",
        "Scaling",
        "Staleness",
        "Bytes sent per sample",
    ]


def test_a_curve_hides_no_other_that_is_the_same() -> None:
    names = [f"s{number}()" for number in range(42)]
    look = looks(["single()", *names])
    assert len({(each.colour, each.dash) for each in look.values()}) == 43
    assert len({look[name].dash for name in ["single()", *names[:6]]}) == 7
    comparison = compared(
        *repeated("single()", 500, workers=1),
        *(run for name in names[:6] for run in repeated(name, 500)),
    )
    for chart in charts(fields(comparison), look):
        lines = [each for each in chart.drawing["data"] if each["type"] == "scatter"]
        medians = [each for each in lines if each["line"]["width"] > 2]
        covers = [look[each["meta"]].cover for each in medians if "meta" in each]
        assert covers == sorted(covers, reverse=True), chart.name
        assert lines[len(lines) - len(medians) :] == medians, chart.name
        assert all(each["marker"]["maxdisplayed"] for each in medians if "meta" in each)


def test_a_page_asks_nobody(tmp_path) -> None:
    page = drawn(everything(), tmp_path)
    assert page.links == []
    assert "default-src 'none'" in page.source
    own = page.source[: page.source.index("plotly.js v")]
    assert "http" not in own.replace("http-equiv", "").replace("www.w3.org", "")


def test_names_of_others_are_text_and_nothing_else(tmp_path) -> None:
    evil = 'x(a="</script><script>alert(1)</script><img src=x onerror=alert(2)>")'
    page = drawn(
        compared(*repeated(evil, 1000), *repeated("a()", 900), script="</title>&"), tmp_path
    )
    assert page.source.count("<script") == 3
    assert "<img" not in page.source[: page.source.index("plotly.js v")]
    assert evil in page.words
    assert any(trace.get("meta") == evil for each in page.drawings for trace in each["data"])


def test_live_and_virtual_are_never_in_one_table_or_chart(tmp_path) -> None:
    page = drawn(everything(), tmp_path)
    live, virtual = page.source.split('<section class="part virtual"')
    live = live.split('<section class="part live"')[1]
    assert 'data-strategy="asynchronous()"' not in live
    assert 'data-strategy="ssp(staleness=4)"' not in virtual


def test_one_run_makes_a_page(tmp_path) -> None:
    page = drawn(compared(run("a()", 1000, validation={})), tmp_path)
    assert "a() ran alone, at 1,000 samples/s" in page.words


def test_only_failures_make_a_page(tmp_path) -> None:
    lost = failed("no", strategy="b()", kind="live", workers=2, repeat=0, seed=0, folder="")
    assert "No run has finished: 1 failed." in drawn(compared(lost), tmp_path).words


def test_without_plotly_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'manyhands\[report\]'"):
        write_page(everything(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


STRATEGIES = ("synchronous()", "asynchronous()", "local_sgd(every=4)")


@pytest.fixture(scope="module")
def virtual_runs(tmp_path_factory) -> Path:
    """Real runs on the virtual cluster: three strategies, on 1 and 3 workers, twice."""
    folder = tmp_path_factory.mktemp("runs")
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(240, 6, generator=generator)
    targets = (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
    job = mh.Job(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.functional.cross_entropy,
        data=TensorDataset(inputs, targets),
        validation=TensorDataset(inputs[:100], targets[:100]),
        metrics=["accuracy", "f1"],
        global_batch=12,
        epochs=3,
    )
    for repeat in range(2):
        for strategy in STRATEGIES:
            for workers in (1, 3):
                mh.simulate(
                    job,
                    strategy,
                    workers=workers,
                    seed=repeat,
                    bandwidth="10mbit",
                    times="lognormal(0.02, cv=0.5)",
                    output=folder / f"{strategy.split('(')[0]}-{workers}-{repeat}",
                )
    return folder


def agree(page: Page, runs: dict[tuple[str, int], list[Raw]], metrics: tuple[str, ...]) -> int:
    """Whether a page's figures are those of the raw traces; how many were looked at."""
    budget = {
        (workers, repeat): min(
            of_one[repeat].seconds
            for (strategy, size), of_one in runs.items()
            if size == workers or strategy == "single()"
        )
        for (_, workers) in runs
        for repeat in range(len(next(iter(runs.values()))))
    }
    looked_at = 0
    for (strategy, workers), raws in runs.items():
        alone = runs.get(("single()", 1)) or runs.get((strategy, 1))
        expected: dict[str, list[float]] = {
            "rate": [raw.rate for raw in raws],
            "later_epoch": [raw.later_epoch for raw in raws],
            "seconds": [raw.seconds for raw in raws],
            "repeated": [raw.samples[1] for raw in raws],
            "lost": [raw.samples[2] for raw in raws],
            "sent_per_sample": [raw.sent / raw.samples[0] for raw in raws],
        }
        if alone:
            speedups = [raw.rate / one.rate for raw, one in zip(raws, alone, strict=True)]
            expected["speedup"] = speedups
            expected["efficiency"] = [speedup / workers for speedup in speedups]
        for metric in metrics:
            expected[f"final_{metric}"] = [raw.metric(metric)[-1][2] for raw in raws]
        if strategy != "single()":
            in_time = [
                [v for at, _, v in raw.metric("accuracy") if at <= budget[workers, repeat] + 1e-9]
                for repeat, raw in enumerate(raws)
            ]
            if all(in_time):
                expected["within"] = [values[-1] for values in in_time]
        if raws[0].staleness:
            expected["staleness_mean"] = [
                sum(v * n for v, n in raw.staleness.items()) / sum(raw.staleness.values())
                for raw in raws
            ]
        for part in raws[0].shares:
            expected[part] = [raw.shares[part] for raw in raws]
        for column, values in expected.items():
            (shown,) = page.cells[column, strategy, workers]
            close = math.isclose(shown, median(values), rel_tol=1e-6, abs_tol=2e-9)
            assert close, (strategy, workers, column, shown, values)
            looked_at += 1
    return looked_at


def test_the_figures_are_those_of_the_raw_traces(virtual_runs, tmp_path) -> None:
    path = tmp_path / "report.html"
    write_page_of(gather([virtual_runs]), path)
    runs = {
        (strategy, workers): [
            Raw(virtual_runs / f"{strategy.split('(')[0]}-{workers}-{repeat}")
            for repeat in range(2)
        ]
        for strategy in STRATEGIES
        for workers in (1, 3)
    }
    page = Page(path)
    assert agree(page, runs, ("accuracy", "f1", "loss")) >= 6 * 15
    (learning,) = (
        [trace for trace in each["data"] if trace.get("meta") == "asynchronous()"]
        for each in page.drawings[:1]
    )
    points = runs["asynchronous()", 3][0].metric("accuracy")
    assert learning[0]["x"] == pytest.approx([at for at, _, _ in points])
    assert learning[0]["y"] == pytest.approx([100 * value for _, _, value in points])


def test_timelines_are_drawn_of_every_strategy_and_bounded(virtual_runs, tmp_path) -> None:
    path = tmp_path / "report.html"
    write_page_of(gather([virtual_runs]), path)
    page = Page(path)
    assert page.source.count('<figure class="lane">') == len(STRATEGIES)
    assert page.source.count('aria-label="timeline of worker') == 3 * len(STRATEGIES)
    assert len(page.source) < LARGEST


LIVE = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    data = torch.utils.data.TensorDataset(
        torch.randn(768, 64, generator=torch.Generator().manual_seed(1)), torch.arange(768) % 5
    )
    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 5)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=32,
        epochs=2,
    )
    if __name__ == "__main__":
        for repeat in range(2):
            for strategy in ("allreduce()", "asynchronous()"):
                name = f"{strategy[:-2]}-{repeat}"
                mh.train(job, strategy, workers=2, output=name)
"""


@pytest.mark.slow
def test_the_figures_of_live_runs_are_those_of_the_raw_traces(run_script, tmp_path) -> None:
    started = run_script(LIVE)
    assert started.finish() == 0, started.text()
    path = tmp_path / "page" / "report.html"
    folders = [
        tmp_path / f"{name}-{repeat}" for name in ("allreduce", "asynchronous") for repeat in (0, 1)
    ]
    write_page_of(gather(folders), path)
    runs = {
        (f"{name}()", 2): [Raw(tmp_path / f"{name}-{repeat}") for repeat in range(2)]
        for name in ("allreduce", "asynchronous")
    }
    assert agree(Page(path), runs, ("accuracy", "loss")) >= 2 * 12
