"""`manyhands schedule`: the drawing, the bubble and the activations of a pipeline schedule."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from manyhands.cli.app import app
from manyhands.schedules import ALL, Durations, replay


def drawn(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["schedule", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_gpipe_on_four_stages(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "bubbles.svg"
    text = drawn("gpipe", "--stages", "4", "--microbatches", "8", "--output", str(picture))
    assert "worker 0  F1F2F3F4F5F6F7F8..................B1--B2--B3--B4--B5--B6--B7--B8--" in text
    assert "worker 3  ......F1F2F3F4F5F6F7F8B1--B2--B3--B4--B5--B6--B7--B8--............" in text
    assert f"bubble       {100 * 3 / 11:.1f} %" in text  # (p − 1)/(m + p − 1)
    assert "at most 8 microbatches at a time" in text
    tree = ET.parse(picture)  # noqa: S314 - we wrote it
    boxes = [each for each in tree.iter() if each.get("class") == "box"]
    assert len(boxes) == 2 * 4 * 8


@pytest.mark.parametrize("name", ALL)
def test_every_schedule_is_drawn_with_its_own_bubble(name: str) -> None:
    stages = 8 if name == "interleaved" else 4
    text = drawn(name, "--stages", str(stages), "--microbatches", "12")
    table = ALL[name](stages, 12, 4)
    share = replay(table, Durations.even(stages, 1, 1, 1)).idle_share
    assert f"bubble       {100 * share:.1f} %" in text
    most = max(table.in_flight(rank) for rank in range(4))
    assert f"at most {most} microbatches" in text
    forwards = len(re.findall(r"[Ff]\d", text.split("letters")[0]))
    assert forwards == stages * 12


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("gpip",), "did you mean 'gpipe'"),
        (("interleaved", "--stages", "5"), "use 10 stages"),
        (("gpipe", "--stages", "4", "--workers", "2"), "4 stages need 4 workers"),
        (("zero_bubble", "--stages", "4", "--workers", "3"), "not divisible by 3 workers"),
        (("gpipe", "--microbatches", "2000"), "from 1 to 1024"),
        (("gpipe", "--output", "bubbles.png"), "use bubbles.svg"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in drawn(*arguments, code=2)
