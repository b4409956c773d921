"""The page on costs shows what the command prints, and values that the formulas have."""

import re

import torch
from typer.testing import CliRunner

import manyhands as mh
from manyhands import costs
from manyhands.cli.app import app
from manyhands.cli.costs import _work
from manyhands.costs import LinkSpeed
from manyhands.costs.work_depth import attention
from manyhands.placements.forecasts.network_cost import network_cost
from manyhands.reports.formatting import size
from support import ROOT

PAGE = (ROOT / "docs" / "costs.md").read_text("utf-8")
BLOCKS = [
    text
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    if not language
]


def test_the_table_is_what_the_command_prints() -> None:
    command, printed, _ = BLOCKS
    words = command.split()
    assert words[:2] == ["manyhands", "costs"]
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    assert [line.rstrip() for line in result.output.strip().splitlines()] == printed.splitlines()


def test_the_layers_are_those_of_lenet() -> None:
    _, *rows, whole = BLOCKS[2].splitlines()
    found = network_cost(mh.models.LeNet, torch.empty(256, 1, 28, 28, device="meta"))
    for row, layer in zip(rows, found.layers, strict=True):
        work, depth, parallelism = _work(layer.cost)
        figures = rf" {work} +{depth} +{parallelism} +{size(layer.weights)} +{size(layer.outputs)} "
        assert re.match(rf"{re.escape(layer.name)} +{layer.kind} +{figures.strip()}", row), row
    assert whole.split()[:4] == ["network", *_work(found.cost)[0].split(), str(found.cost.depth)]


def test_values_beside_the_code() -> None:
    link = LinkSpeed(latency=50e-6, bandwidth=1.25e9)
    assert f"# {costs.ring(102.4e6, 64).seconds(link):.3f}" in PAGE
    assert f"# {costs.fastest(102.4e6, 65, link)!r}" in PAGE
    assert f"# {costs.crossover(costs.butterfly, costs.halving, 64, link):,.0f} bytes" in PAGE


def test_the_formula_of_attention() -> None:
    h, q, k, d = 3, 4, 8, 16
    work = h * (q * k * (2 * d - 1) + q * k + q * (5 * k - 2) + q * d * (2 * k - 1))
    assert "6 + ⌈log d⌉ + 3⌈log k⌉" in PAGE
    found = attention(h, q, k, d, d)
    assert (found.work, found.depth) == (work, 6 + 4 + 3 * 3)
