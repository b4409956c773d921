"""`manyhands costs`: times of allreduce algorithms, who is fastest, and a job's layers."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from manyhands import units
from manyhands.cli.app import app
from manyhands.costs import BETWEEN_WORKERS, LinkSpeed, fastest, fastest_ranges

LINK = LinkSpeed(units.seconds("50us"), units.bandwidth("10gbit"))
JOB = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    data = torch.utils.data.TensorDataset(torch.zeros(8, 1, 28, 28), torch.zeros(8).long())
    job = mh.Job(
        model=mh.models.LeNet,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        metrics=(),
        global_batch=4,
        epochs=1,
    )
"""


def shown(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["costs", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_the_table_marks_the_fastest_for_every_number_of_workers() -> None:
    text = shown(
        *("--parameters", "25.6M", "--workers", "2..1024"),
        *("--latency", "50us", "--bandwidth", "10gbit"),
    )
    assert "Allreduce: 102.4 MB, 50 µs, 10 Gbit/s" in text
    head, *rows = [line for line in text.splitlines() if re.match(r" *(workers|[\d,]+) ", line)]
    assert head.split()[:6] == ["workers", *BETWEEN_WORKERS, "bound"]
    assert len(rows) == 10
    for row in rows:
        workers = int(row.split()[0].replace(",", ""))
        best = fastest(102.4e6, workers, LINK)
        before = row[: row.index("*")]
        # As many cells, of a number and a unit each, are before the mark.
        assert (len(before.split()) - 1) / 2 == 1 + list(BETWEEN_WORKERS).index(best)
    (last,) = (row for row in rows if row.startswith("  1,024"))
    assert "165 ms *" in last
    assert "168 s" in last  # one server
    assert "On 2 workers: butterfly for all sizes." in text
    words = "butterfly up to a size between 78.1 kB and 250.0 kB, then halving."
    assert f"On 4, 8, …, 1,024 workers: {words}" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_sweep_of_sizes_for_one_number_of_workers() -> None:
    text = shown("--bytes", "4KB..1GB", "--workers", "48")
    assert "Allreduce: 48 workers" in text
    rows = [line for line in text.splitlines() if re.match(r" *[\d.]+ [kMG]B ", line)]
    assert (rows[0].split()[:2], rows[-1].split()[:2]) == (["4.0", "kB"], ["1.0", "GB"])
    assert len(rows) == 19
    first, second = (size.end for size in fastest_ranges(48, LINK)[:2])
    words = f"butterfly up to {first / 1e3:.1f} kB, halving up to {second / 1e6:.1f} MB, then ring."
    assert f"On 48 workers: {words}" in text


def test_json_has_seconds_messages_and_bytes() -> None:
    result = json.loads(shown("--bytes", "1MB", "--workers", "3,4", "--servers", "2", "--json"))
    assert [row["workers"] for row in result["rows"]] == [3, 4]
    ring = result["rows"][1]["algorithms"]["ring"]
    assert ring == {
        "seconds": pytest.approx(6 * 50e-6 + 1.5e6 / 1.25e9),
        "rounds": 6,
        "messages": 24,
        "sent": 6e6,
        "sent_per_worker": 1.5e6,
    }
    assert result["rows"][0]["fastest"] == "ring"
    assert list(result["rows"][0]["algorithms"])[-3:] == ["1 server", "2 servers", "islands"]
    assert result["fastest"][1]["ranges"][-1]["end"] is None
    assert result["reduction"] is None


def test_adding_up_takes_time_if_a_speed_is_given() -> None:
    options = ("--bytes", "1MB", "--workers", "4", "--json")
    free = json.loads(shown(*options))["rows"][0]["algorithms"]
    slow = json.loads(shown(*options, "--reduction", "1GB/s"))["rows"][0]["algorithms"]
    gained = {name: slow[name]["seconds"] - free[name]["seconds"] for name in ("tree", "ring")}
    assert gained == pytest.approx({"tree": 2e-3, "ring": 0.75e-3})


def test_the_chart_shows_every_algorithm_that_is_fastest_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "costs.svg"
    text = shown("--bytes", "1KB..1GB", "--workers", "2..64", "--chart", str(picture))
    assert str(picture) in text.replace("\n", "")
    tree = ET.parse(picture)  # noqa: S314 - we wrote it
    drawn = {
        match[1].lower()
        for each in tree.iter()
        for match in re.finditer(r"fill: (#[0-9a-f]{6})", each.get("style") or "")
    }
    assert {"#d55e00", "#009e73", "#cc79a7"} <= drawn  # butterfly, ring, halving
    assert "#0072b2" not in drawn  # tree


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "expected one of --parameters 25.6M, --bytes 100MB and --script script.py, got none"),
        (("--parameters", "1M", "--bytes", "1MB"), "got --parameters and --bytes"),
        (("--parameters", "many"), "expected a whole number such as '64', '25.6M' or '1.5B'"),
        (("--bytes", "4KB/s"), "expected a size such as '4KB', '100MB' or '1GB', got '4KB/s'"),
        (("--bytes", "4KB..1GB"), "a range of --bytes needs one number of workers"),
        (("--bytes", "1MB", "--workers", "8..2"), "from the smaller to the larger end"),
        (("--bytes", "1MB", "--workers", "0"), "expected a whole number"),
        (("--bytes", "1MB", "--latency", "soon"), "expected a time such as"),
        (("--bytes", "1MB", "--bandwidth", "fast"), "expected a bandwidth such as"),
        (("--bytes", "1MB", "--chart", "costs.png"), "use costs.svg"),
        (("--bytes", "1MB", "extra"), "arguments of the"),
    ],
)
def test_what_cannot_be_computed_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in shown(*arguments, code=2)


@pytest.mark.slow
def test_a_script_gives_its_parameters_and_layers(start, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB), encoding="utf-8")
    command = (sys.executable, "-m", "manyhands", "costs", "--script", "job.py")
    table = start(*command, "--workers", "3", "--batch", "2")
    assert table.finish() == 0, table.text()
    text = table.text()
    (row,) = (line for line in text.splitlines() if line.startswith("classifier.1"))
    assert row.split()[1:6] == ["fully", "connected", "4.2", "M", "12"]
    (whole,) = (line for line in text.splitlines() if line.startswith("network"))
    assert whole.split()[1:6] == ["19.3", "M", "48", "401,387", "4.4"]
    assert "1,111,946 parameters" in text
    assert "Allreduce: 4.4 MB" in text
    data = start(*command, "--json")
    assert data.finish() == 0, data.text()
    result = json.loads(data.text())
    assert result["rows"][0]["bytes"] == 4 * 1_111_946
    assert result["network"]["work"] == 2 * 19_266_560
    assert result["network"]["depth"] == 48
    assert result["network"]["layers"][0]["kind"] == "convolution"


def test_formulas_alone_need_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from manyhands.cli.app import app; "
        "result = CliRunner().invoke(app, ['costs', '--bytes', '1MB', '--json']); "
        "sys.exit(result.exit_code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("text", "number"), [("4KB", 4e3), ("1.5 GB", 1.5e9), ("100", 100.0), ("2TB", 2e12)]
)
def test_sizes(text: str, number: float) -> None:
    assert units.size(text) == number


@pytest.mark.parametrize("text", ["", "0", "1.5", "M", "3.7", "4KB", "64/s", "1e999", "nan"])
def test_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        units.count(text)
