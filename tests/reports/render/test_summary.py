import textwrap
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from manyhands.reports import Run, ending, parameters_digest, settings, summary
from manyhands.trace import Recorder, live_header


def test_the_summary_of_a_finished_run(finished) -> None:
    expected = """\
        allreduce() on 2 workers, 1 host: finished
          trained      2,000 samples, 2 epochs, 20.0 s: 100 samples/s
          epochs       the first 10.0 s, then 10.0 s each
          validation   accuracy 0.89 (best 0.9 at 10.0 s), loss 0.05263
          loss         0.1 in training (mean of the last 100 samples), from 2 (the first
                       100)
          time         compute 60.0 %, wait 20.0 %, communication 10.0 %, data 10.0 %,
                       evaluation 0.0 %, other 0.0 %; 2.0 s to start not counted
          sent         40.0 MB, 20.0 kB per sample
          staleness    none: lockstep
          samples      2,000 seen, 0 repeated, 0 lost
          settings     command line: strategy allreduce(), workers 2; script:
                       global_batch 100; default: seed 0
          parameters   abababababababababababababababababababababababababababababababab"""
    assert summary(finished.trace()) == textwrap.dedent(expected)


def test_a_failed_run_says_why_in_its_first_line(finished) -> None:
    agent = finished.processes["agent"][0]
    words = "worker 3 on hostB was killed (SIGKILL), probably out of memory"
    agent.recorder.event("end", {"status": "failed", "words": words})
    first = " ".join(summary(finished.trace()).splitlines()[:2]).replace("   ", " ")
    assert first.startswith(f"allreduce() on 2 workers, 1 host: failed: {words}")


def test_a_virtual_run_says_so(make_stage) -> None:
    stage = make_stage(kind="virtual")
    for rank in range(3):
        worker = stage.process("worker", rank, host=f"host{rank % 2}")
        worker.recorder.setting("strategy", "ssp(staleness=4)", "script")
    worker.recorder.event("end", {"status": "finished"})
    assert ending(stage.trace()).status == "unfinished"
    stage.processes["worker-0"][0].recorder.event("end", {"status": "finished"})
    first = summary(stage.trace()).splitlines()[0]
    assert first == "ssp(staleness=4) on 3 virtual workers, 2 hosts: finished"


def test_a_run_that_did_not_end_says_what_was_said_last(trained) -> None:
    worker = trained.processes["worker-1"][0]
    worker.clock.now = 30.0
    worker.recorder.event("checkpoint", {"path": "x/3", "version": "7"})
    head = " ".join(line.strip() for line in summary(trained.trace()).splitlines()[:2])
    assert "did not end properly; the last record is worker-1's at 30.0 s" in head
    assert "checkpoint (path x/3, version 7)" in head


def test_where_there_is_an_agent_no_worker_says_how_it_ended(trained) -> None:
    trained.processes["worker-0"][0].recorder.event("end", {"status": "finished"})
    assert ending(trained.trace()).status == "unfinished"


def test_the_coordinator_speaks_for_an_agent_that_was_killed(trained) -> None:
    coordinator = trained.process("coordinator").recorder
    coordinator.event("end", {"status": "failed", "words": "the agent was killed"})
    assert "failed: the agent was killed" in summary(trained.trace())
    trained.processes["agent"][0].recorder.event("end", {"status": "interrupted"})
    assert ending(trained.trace()).status == "interrupted"


def test_a_run_of_which_nobody_said_anything(stage) -> None:
    stage.process("worker", 0)
    text = summary(stage.trace())
    assert text.splitlines()[0] == (
        "a run on 1 worker, 1 host: did not end properly; no process left a record"
    )
    assert "0 samples, 0 s: 0 samples/s" in text
    assert "sent         nothing" in text


def test_a_run_without_workers_still_has_a_summary(stage) -> None:
    agent = stage.process("agent")
    agent.recorder.event("end", {"status": "failed", "words": "no worker came up"})
    assert "failed: no worker came up" in summary(stage.trace())


def test_the_last_end_counts_after_a_resumption(stage) -> None:
    for status in ("interrupted", "finished"):
        stage.process("agent").recorder.event("end", {"status": status})
    assert ending(stage.trace()).status == "finished"


def test_settings_are_told_once(stage) -> None:
    for rank in range(2):
        stage.process("worker", rank).recorder.setting("seed", rank, "default")
    assert [(setting.name, setting.value) for setting in settings(stage.trace())] == [("seed", "0")]


def test_staleness_and_lost_samples_and_skipped_lines(stage) -> None:
    for rank in range(2):
        worker = stage.process("worker", rank)
        for _ in range(1000):
            worker.recorder.staleness(rank + 1)
    worker.recorder.samples(12_345, 6, 7)
    worker.recorder.flush()
    worker.parts.append(b"torn\n")
    text = summary(stage.trace())
    assert "mean 1.5, 99 % within 2, at most 2 (2,000 updates" in text
    assert "means by process 1 to 2" in " ".join(text.split())
    assert "12,345 seen, 6 repeated, 7 lost" in text
    assert "1 line could not be read" in text
    assert "sent         nothing" in text


def test_staleness_is_told_by_worker_where_it_is_known(stage) -> None:
    for rank in range(2):
        stage.process("server", 0).recorder.staleness(rank + 1, f"worker-{rank}")
    assert "means by worker 1 to 2" in " ".join(summary(stage.trace()).split())


def test_a_diverged_run_says_so(stage) -> None:
    worker = stage.process("worker", 0)
    for step, loss in enumerate((2.5, float("nan"))):
        worker.recorder.point("loss", loss, samples=10 * (step + 1))
    text = " ".join(summary(stage.trace()).split())
    assert "not finite in training (mean of the last 10 samples), from 2.5 (the first 10)" in text


@pytest.mark.parametrize("count", [1, 40])
def test_every_line_has_80_columns_and_there_are_some_fifteen(finished, count) -> None:
    recorder = finished.processes["agent"][0].recorder
    for number in range(count):
        recorder.setting(f"setting_{number}", "x" * 20, "script")
    lines = summary(finished.trace()).splitlines()
    assert len(lines) <= 16
    assert all(len(line) <= 80 for line in lines)


def test_the_digest_of_the_parameters_is_the_last_one(finished) -> None:
    assert parameters_digest(finished.trace()) == "ab" * 32
    finished.processes["worker-0"][0].clock.now += 1
    finished.processes["worker-0"][0].recorder.event("parameters", {"sha256": "cd" * 32})
    assert parameters_digest(finished.trace()) == "cd" * 32


def test_how_a_model_was_divided_is_told_part_by_part(finished) -> None:
    lines = [f"stage {number}: block{number}, 9 % of the time" for number in range(11)]
    detail = {str(number): line for number, line in enumerate(lines)}
    finished.processes["worker-0"][0].recorder.event("divided", detail)
    told = [line for line in summary(finished.trace()).splitlines() if "  stage " in line]
    assert told[0] == "  stage 0      block0, 9 % of the time"
    # In the order of their numbers, not of their names.
    assert [line.split()[1] for line in told] == [str(number) for number in range(11)]


def test_the_loss_of_a_short_run_is_that_of_all_its_samples(stage) -> None:
    stage.process("worker", 0).recorder.point("loss", 2.26, samples=640)
    assert "2.26 in training (mean of all 640 samples)" in summary(stage.trace())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_a_run_whose_agent_lives_is_still_running(tmp_path) -> None:
    path = tmp_path / "trace" / "agent.jsonl"
    path.parent.mkdir()
    head = live_header("agent", 0, clock=time.monotonic, wall=time.time)

    def opened(header) -> Run:
        recorder = Recorder(header, path.write_bytes, time.monotonic)
        recorder.event("started")
        recorder.flush()
        return Run(tmp_path)

    assert opened(head).status == "running"
    assert "is still running" in opened(head).summary()
    # A later process with the same number; a host that was started again; a process that is gone.
    for other in (replace(head, clock=0.0), replace(head, boot="other"), replace(head, pid=2**22)):
        assert opened(other).status == "unfinished"
        assert "did not end properly" in opened(other).summary()
