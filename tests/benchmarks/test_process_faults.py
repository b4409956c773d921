"""Processes of a run that stop, sleep or hang are replaced; all of them are in the benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.process_faults import FAULTS, PROCESSES, STRATEGIES, pairs_of, table
from benchmarks.process_faults_trial import Cell, impossible, suffered

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timed
def test_a_run_gets_over_a_deadlock_a_stopped_server_and_a_stopped_coordinator(
    tmp_path: Path,
) -> None:
    pairs = [("worker", "sleep"), ("server", "stop"), ("coordinator", "stop")]
    cells = [*suffered("asynchronous()", 1, pairs, tmp_path)]
    assert [(one.process, one.fault) for one in cells] == pairs
    assert [one for one in cells if not one.passed] == []


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_gets_over_every_fault_of_every_process(
    strategy: str, hosts: int, tmp_path: Path
) -> None:
    cells = [*suffered(strategy, hosts, pairs_of(PROCESSES, FAULTS), tmp_path)]
    assert [one for one in cells if not one.passed] == []


def test_a_table_has_a_row_for_each_fault_and_a_dash_where_there_is_none() -> None:
    cells = [
        Cell("allreduce()", 1, "worker", "kill", passed=True, gone=0.0, on=1.2),
        Cell("allreduce()", 1, "agent", "kill", passed=True, gone=0.3),
        Cell("asynchronous()", 1, "server", "stop", passed=False),
    ]
    assert impossible("allreduce()", 1, "server", "stop")
    assert table(cells, 1).splitlines()[2:] == [
        "| worker | kill | 0.0 / 1.2 |  |",
        "| server | stop | – | **failed** |",
        "| agent | kill | 0.3 / ends |  |",
    ]
