"""Scripts and the command line: what each setting is and where it came from."""

import json
import sys

from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    print("loaded as", __name__, sys.argv[1:])
    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(512, 20), torch.randint(0, 5, (512,))),
        global_batch=64,
        epochs=2,
    )
"""
TRAINS = (
    SCRIPT
    + """
    if __name__ == "__main__":
        print("side effect below the guard")
        print(mh.train(job, "single()", workers=1).summary())
        print(mh.train(job, "single()", workers=1).summary())
"""
)


def manyhands(start, *arguments):
    return start(sys.executable, "-m", "manyhands", *arguments)


def write(folder, text, name="script.py"):
    path = folder / name
    lines = text.splitlines()
    path.write_text("\n".join(line.removeprefix("    ") for line in lines), encoding="utf-8")
    return path


def test_the_command_line_wins_and_the_summary_says_so(start, tmp_path):
    write(tmp_path, TRAINS)
    started = manyhands(
        start,
        *("train", "script.py", "--strategy", "allreduce", "--workers", "2"),
        *("--samples", "640", "--seed", "5", "--output", "out", "--", "--mine", "x"),
    )
    assert started.finish() == 0, started.text()
    text = started.text()
    assert text.count("allreduce() on 2 workers") == 2, (
        "two calls are two runs, each summed up once"
    )
    assert text.count("side effect below the guard") == 1
    assert "loaded as __main__ ['--mine', 'x']" in text
    for folder in ("out", "out-2"):
        run = Run(tmp_path / folder)
        assert run.samples == 640
        log = (tmp_path / folder / "logs" / "worker-1.out").read_text(encoding="utf-8")
        assert "loaded as __manyhands__ ['--mine', 'x']" in log
        assert "side effect" not in log
        told = {
            setting.name: (setting.value, setting.source)
            for process in run.trace.processes
            for setting in process.settings
        }
        assert told["strategy"] == ("allreduce()", "command line")
        assert told["workers"] == ("2", "command line")
        assert told["seed"] == ("5", "command line")
        assert told["samples"] == ("640", "command line")
        assert told["global_batch"] == ("64", "script")
        assert "epochs" not in told


def test_a_script_that_only_has_a_job_is_trained_and_summed_up(start, tmp_path):
    write(tmp_path, SCRIPT)
    started = manyhands(start, "train", "script.py", "--workers", "1", "--output", "out")
    assert started.finish() == 0, started.text()
    assert "single() on 1 worker" in started.text()
    again = manyhands(start, "summary", "out")
    assert again.finish() == 0
    assert "single() on 1 worker" in again.text()
    exported = manyhands(start, "timeline", "out")
    assert exported.finish() == 0
    assert json.loads((tmp_path / "out" / "timeline.json").read_bytes())["traceEvents"]
    refused = manyhands(start, "train", "script.py", "--workers", "1", "--output", "out")
    assert refused.finish() != 0
    assert "already holds a run" in refused.text()


def test_mistakes_are_answered_with_the_fix(start, run_script, tmp_path):
    write(tmp_path, SCRIPT)
    misspelt = manyhands(start, "train", "script.py", "--strategy", "alreduce()")
    many = manyhands(start, "train", "script.py", "--strategy", "single()", "--workers", "3")
    nothing = manyhands(start, "train", "nothing.py")
    aimless = manyhands(start, "train", "script.py", "--target", "speed >= 9")
    no_run = manyhands(start, "summary", ".")
    local = run_script(
        SCRIPT.replace("job = mh.Job(", "def make():\n        return mh.Job(")
        + '    if __name__ == "__main__":\n        mh.train(make(), "single()")\n',
        name="local.py",
    )
    unguarded = run_script(SCRIPT + "    mh.train(job, 'single()', workers=1)\n", name="bare.py")
    for started, words in [
        (misspelt, "did you mean 'allreduce'"),
        (many, "for 3 workers use allreduce()"),
        (nothing, "there is no file nothing.py"),
        (aimless, "needs validation data to be measured on"),
        (no_run, "is not the folder of a run"),
        (local, "at the top level of a script"),
        (unguarded, 'put the call below if __name__ == "__main__"'),
    ]:
        assert started.finish() != 0
        assert words in started.text(), started.text()
        wait_for(lambda: not started.tree(), 5, "everything gone")  # noqa: B023 - called at once
    for started in (misspelt, many, nothing, aimless, no_run):
        assert "Traceback" not in started.text(), "a mistake on the command line is no bug"
