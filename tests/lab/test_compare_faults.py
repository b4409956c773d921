"""Faults on purpose in a comparison: the same in every run, recorded, and made again."""

import pytest
from test_compare_virtual import a_job

import manyhands as mh
from manyhands.faults import Crash, Faults
from manyhands.lab.design import Design, Script
from manyhands.lab.entrants import read_entrants
from manyhands.lab.reproduction.records import design_of, record_design
from manyhands.lab.runs import command
from manyhands.reports.figures.fault_times import fault_times

TEXT = "crash worker 1 at 0.2 s; stop worker 0 from 0.3 s to 0.6 s"


def test_every_virtual_run_of_a_comparison_has_the_faults(tmp_path):
    found = mh.compare(
        a_job(),
        "synchronous, asynchronous",
        workers=2,
        repeats=1,
        virtual=True,
        faults=TEXT,
        processes=1,
        output=tmp_path / "compared",
    )
    assert [run.status for run in found.results.runs] == ["finished"] * 2
    assert found.results.design.faults == Faults.read(TEXT).text
    for run in found.results.runs:
        trace = mh.Run(found.folder / run.folder).trace
        assert Crash(worker=1, at=0.2, restart=1.0) in [one.fault for one in fault_times(trace)]
    assert design_of(found.results, None).faults == Faults.read(TEXT)


def test_a_live_run_gets_the_faults_on_its_command_line(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("", encoding="utf-8")
    design = Design(
        entrants=read_entrants("asynchronous"),
        workers=(2,),
        script=Script(path=script, job="job"),
        faults=Faults.read(TEXT),
    )
    words = command(design, design.turns[0], tmp_path / "run")
    assert Faults.read(words[words.index("--faults") + 1]) == design.faults
    assert record_design(design).faults == design.faults.text
    assert design.identity()["faults"] == design.faults.text


def test_a_comparison_refuses_faults_that_a_run_cannot_have(tmp_path):
    with pytest.raises(ValueError, match="the run has 2 workers"):
        mh.compare(
            a_job(),
            "asynchronous",
            workers=2,
            virtual=True,
            faults="crash worker 5 at 1 s",
            output=tmp_path / "compared",
        )
