"""What a fork server forks is as good as a process that was started afresh."""

import json
import sys

import pytest

from manyhands.live.processes import parent_death
from manyhands.reports import Run
from support import wait_for

JOB = """
    import atexit, json, os, random, sys
    import numpy as np, psutil, torch, torch.nn.functional as F
    import manyhands as mh

    EARLY

    def shown(process):
        try:
            return process.cmdline()
        except psutil.Error:  # it has just ended
            return []

    def tell():
        main, me = sys.modules["__main__"], psutil.Process()
        names = sorted(os.listdir("/proc/self/fd"), key=int)
        held = [f"/proc/self/fd/{name}" for name in names]
        print("TOLD", json.dumps({
            "main": [main.__name__, main.__spec__.name, main.__file__, main.__package__],
            "argv": sys.argv,
            "orig_argv": sys.orig_argv[:-2],
            "path": sys.path,
            "cwd": os.getcwd(),
            "environ": {k: v for k, v in os.environ.items() if k not in ("MANYHANDS_FORK", "_")},
            "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), me.num_threads()],
            "open": [os.readlink(name) for name in held if os.path.exists(name)],
            "session": [os.getsid(0) == me.pid, os.getpgid(0) == me.pid],
            "signals": [x for x in open("/proc/self/status") if x[:3] == "Sig" and "Q" not in x],
            "listed": [part for part in me.cmdline() if part][:3],
            "torch": torch.rand(1).item(),
            "random": [random.random(), np.random.rand()],
            "parent": os.getppid(),
            "fork_servers": [
                child.pid
                for child in me.parent().children()
                if "manyhands.live.processes.fork_server" in shown(child)
            ],
        }))

    if __name__ != "__main__":
        atexit.register(tell)

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(64, 20), torch.randint(0, 5, (64,))),
        global_batch=32,
        epochs=1,
    )

    if __name__ == "__main__":
        os.makedirs("elsewhere")
        os.chdir("elsewhere")
        os.environ["COLOUR"] = "green"
        mh.train(job, "asynchronous()", workers=2, output="run")
        print("AGENT", os.getpid(), [child.name() for child in psutil.Process().children()])
"""


def told(folder, name):
    """What a process of the run said of itself at its end."""
    text = (folder / "elsewhere" / "run" / "logs" / f"{name}.out").read_text(encoding="utf-8")
    return json.loads(text.split("TOLD ")[1].splitlines()[0])


@pytest.mark.slow
def test_a_forked_process_is_as_one_started_afresh(run_script, tmp_path):
    found = {}
    for switch in ("1", "0"):
        last = (
            'class Last: __del__ = lambda self: print("TAKEN APART")\n'
            '    last = None if __name__ == "__main__" else Last()'
        )
        started = run_script(JOB.replace("EARLY", last), "an argument", MANYHANDS_FORK=switch)
        assert started.finish(120) == 0, started.text()
        agent = started.text().split("AGENT ")[1].split()
        assert agent[1:] == ["[]"], "no child and no zombie is left"
        for name in ("worker-0", "worker-1", "server-0"):
            said = told(tmp_path, name)
            assert said.pop("parent") == int(agent[0])
            assert len(said.pop("fork_servers")) == int(switch)
            found[switch, name] = said
            log = tmp_path / "elsewhere" / "run" / "logs" / f"{name}.out"
            # It would write to memory that is shared as long as nothing does.
            assert ("TAKEN APART" in log.read_text(encoding="utf-8")) == (switch == "0")
        (tmp_path / "elsewhere").rename(tmp_path / f"elsewhere-{switch}")
    names = ("worker-0", "worker-1", "server-0")
    drawn = [number for name in names for number in found["1", name]["random"]]
    assert len(set(drawn)) == len(drawn), "every process draws random numbers of its own"
    for name in names:
        assert found["1", name] == found["0", name]
    assert found["1", "worker-0"]["environ"]["COLOUR"] == "green"


@pytest.mark.parametrize(
    ("early", "taken"),
    [("", True), ('os.environ["COLOUR"] = "red"', False)],
    ids=["as the command guessed", "in other surroundings"],
)
def test_the_command_starts_a_fork_server_ahead(start, tmp_path, early, taken):
    script = tmp_path / "script.py"
    text = "\n".join(line[4:] for line in JOB.replace("EARLY", early).splitlines())
    script.write_text(text.split("if __name__ ==")[0], encoding="utf-8")
    started = start(
        *(sys.executable, "-m", "manyhands", "train", script, "--strategy", "allreduce()"),
        *("--workers", "2", "--output", "elsewhere/run"),
    )
    wait_for(started.fork_server, 60, "a fork server")
    first = started.fork_server().pid
    assert started.finish(120) == 0, started.text()
    assert Run(tmp_path / "elsewhere" / "run").status == "finished"
    said = told(tmp_path, "worker-1")
    assert len(said["fork_servers"]) == 1
    assert (said["fork_servers"] == [first]) == taken
    assert said["environ"].get("COLOUR") == ("red" if early else None)
    assert not started.tree()


def test_orphans_are_adopted_only_while_it_is_asked_for():
    assert parent_death.can_adopt()
    libc = parent_death.ctypes.CDLL(None)
    assert parent_death._adopts(libc) == 0
    with parent_death.adopting():
        assert parent_death._adopts(libc) == 1
    with pytest.raises(ZeroDivisionError), parent_death.adopting():
        1 / 0  # noqa: B018 - for its exception
    assert parent_death._adopts(libc) == 0
