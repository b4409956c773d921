"""`manyhands timeline`, to a Chrome trace or to a picture."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manyhands.cli.app import app
from manyhands.trace import Header, Recorder, trace_file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    header = Header(role="worker", host="a", pid=1, boot="b", clock=0.0, wall=0.0)
    path = trace_file(tmp_path, header)
    path.parent.mkdir()
    with path.open("ab") as file:
        recorder = Recorder(header, file.write, lambda: 1.0)
        recorder.span("compute", 0.0, 1.0, 0)
        recorder.flush()
    return tmp_path


def test_a_chrome_trace_by_default(run: Path) -> None:
    result = CliRunner().invoke(app, ["timeline", str(run)])
    assert result.exit_code == 0
    assert "perfetto" in result.stdout
    assert json.loads((run / "timeline.json").read_bytes())["traceEvents"]


def test_a_picture_where_the_file_ends_in_svg(run: Path) -> None:
    result = CliRunner().invoke(app, ["timeline", str(run), "--output", str(run / "t.svg")])
    assert result.exit_code == 0
    assert "browser" in result.stdout
    assert ET.parse(run / "t.svg").getroot().tag.endswith("svg")  # noqa: S314 - we wrote it


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["timeline", str(tmp_path), "--output", "t.svg"])
    assert result.exit_code == 2
    assert "is not the folder of a run" in result.stderr
