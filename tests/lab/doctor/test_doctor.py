"""Faults of a machine, planted for real, and whether each is found with the right words."""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from manyhands.lab.doctor import examine
from manyhands.lab.doctor.clocks import check_date, check_rate, check_skew
from manyhands.lab.doctor.finding import ExaminedRun, Surroundings
from manyhands.lab.doctor.limits import needed_threads
from manyhands.lab.doctor.memory import check_memory
from manyhands.lab.doctor.processor import check_cores
from manyhands.lab.doctor.software import load_script
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.processes.control_groups import ControlGroups
from manyhands.strategies import strategy

EXAMINED_AT = """
    import json, sys
    from pathlib import Path
    from manyhands.lab.doctor import examine

    for place in sys.argv[1:]:
        found = examine(workers=2, output=Path(place))
        print(json.dumps([str(one) for one in found.all]))
"""
LIMITED = """
    import os, resource
    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings
    from manyhands.lab.doctor.limits import check_processes
    from manyhands.strategies import strategy

    plan = ExaminedRun(strategy("asynchronous()"), 40)
    plan.needs, plan.cores
    resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
    if os.getuid() == 0:  # to whom the limit does not apply
        os.setuid(65534)
    for finding in check_processes(plan, Surroundings()):
        print(finding)
"""


def python(text: str, *arguments: object, before: tuple[str, ...] = (), **options) -> list[str]:
    """The lines that a program prints."""
    command = [*before, sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def plan(workers: int = 2, text: str = "allreduce()", **rest) -> ExaminedRun:
    return ExaminedRun(strategy(text), workers, **rest)


@pytest.mark.timeout(150)
def test_the_command_finds_every_fault_of_a_sick_machine(tmp_path: Path) -> None:
    script, key = tmp_path / "broken.py", tmp_path / "key"
    script.write_text("import manyhands as mh\n\nraise RuntimeError('no licence')\n")
    key.write_text("ab" * 32 + "\n")
    key.chmod(0o644)
    (tmp_path / "run" / "trace").mkdir(parents=True)

    def plant() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = (
            *(sys.executable, "-m", "manyhands", "doctor", script, "--hosts", "a:64, b:4"),
            *("--listen", f"127.0.0.1:{port}", "--key-file", key, "--output", tmp_path / "run"),
            *("--strategy", "asynchronous()", "--json"),
        )
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            preexec_fn=plant,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "16",
                "MANYHANDS_DATA": str(tmp_path / "nowhere"),
            },
        )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    words = {one["name"]: one for one in found["findings"] if one["severity"] != "ok"}
    assert found["errors"] == sum(one["severity"] == "error" for one in words.values())
    for name, severity, expected, advice in (
        ("script", "error", "broken.py does not load: line 3: RuntimeError: no licence", "guard"),
        ("open files", "error", "68 workers need 393 open files", "limits.conf"),
        ("file size", "error", "a file may have 700.0 kB (ulimit -f)", "ulimit -f unlimited"),
        ("run folder", "error", "already holds a run", "--output"),
        ("cache folder", "warning", "cannot be written (File too large)", "MANYHANDS_CACHE"),
        ("data folder", "error", "nowhere', which is not a folder", "unset it to download"),
        ("key file", "error", "has mode 0644: other users can read", "chmod 600"),
        ("threads", "warning", "OMP_NUM_THREADS is 16: 64 workers × 16 on", "unset OMP_NUM"),
        ("address for other hosts", "error", f"127.0.0.1:{port} (Address already in use)", "end"),
    ):
        assert words[name]["severity"] == severity, words[name]
        assert expected in words[name]["found"], words[name]
        assert advice in words[name]["advice"], words[name]


@pytest.mark.timeout(150)
def test_disks_and_networks_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    full, fixed = tmp_path / "full", tmp_path / "fixed"
    full.mkdir()
    fixed.mkdir()
    shell = (
        f"mount -t tmpfs -o size=256k none {full} && mount -t tmpfs -o ro none {fixed} && "
        f"head -c 200000 /dev/zero > {full}/file && "
        "echo '40000 40003' > /proc/sys/net/ipv4/ip_local_port_range && "
        'exec "$0" "$@"'
    )
    before = ("unshare", "--mount", "--net", "sh", "-c", shell)
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not permitted here: {tried.stderr.strip()}")
    environment = {**os.environ, "MANYHANDS_CACHE": str(fixed / "cache")}
    lines = python(EXAMINED_AT, full / "run", fixed / "run", before=before, env=environment)
    first, second = (json.loads(line) for line in lines[-2:])
    words = "\n".join(first)
    assert f"error: run folder: {full} cannot be written (No space left on device)" in words
    assert "free some space on the disk" in words
    assert f"warning: cache folder: {fixed} cannot be written (Read-only file system)" in words
    assert "error: loopback: no connection to 127.0.0.1 is possible" in words
    assert "ip link set lo up" in words
    assert "error: ports: 4 of 4 are free, the run takes up to 14" in words
    assert f"error: run folder: {fixed} cannot be written (Read-only file system)" in "\n".join(
        second
    )
    assert f"ok: file system: {fixed} is on tmpfs" in second


@pytest.mark.timeout(100)
def test_a_limit_on_processes_is_found() -> None:
    (finding,) = [line for line in python(LIMITED) if "ulimit -u" in line]
    assert finding.startswith("error: processes and threads: 100 are allowed (ulimit -u)")
    assert "use fewer workers" in finding


@pytest.fixture
def groups(tmp_path: Path) -> ControlGroups:
    """The control groups of a container with 1 GB, 30 processes and half a core."""
    own = tmp_path / "own"
    own.write_text("0::/machine/box\n")
    box = tmp_path / "groups" / "machine" / "box"
    box.mkdir(parents=True)
    for name, text in {
        "memory.max": "1000000000",
        "memory.current": "800000000",
        "memory.stat": "anon 1\ninactive_file 100000000\n",
        "pids.max": "30",
        "pids.current": "10",
        "cpu.max": "50000 100000",
    }.items():
        (box / name).write_text(text)
    for name in ("memory.max", "pids.max"):
        (box.parent / name).write_text("max\n")
    return ControlGroups(tmp_path / "groups", own)


def test_limits_of_a_container_are_found(groups: ControlGroups) -> None:
    assert groups.memory_left() == 300_000_000
    around = Surroundings(groups=groups)
    found = examine(workers=8, strategy="allreduce()", around=around)
    errors = {one.name: one for one in found.errors}
    assert "the control group allows 20 more, the run starts up to" in str(
        errors["processes of the control group"]
    )
    (memory,) = check_memory(plan(8), around)
    assert memory.severity == "warning"
    (memory,) = check_memory(plan(9), around)
    assert memory.severity == "error"
    assert "9 workers need at least 330 MB of memory" in memory.found
    assert "and 300 MB are available: use at most 8 workers" in memory.found
    assert "the control group of this process leaves 300.0 MB" in memory.found
    assert "raise the memory limit of the container" in memory.advice
    quota = next(one for one in check_cores(plan(), around) if one.name == "processor quota")
    assert quota.severity == "warning"
    assert "the control group may use 0.5 of" in quota.found
    assert "use at most 1 worker, or raise the quota" in quota.advice


def test_control_groups_of_version_1_are_read(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n")
    for path, text in {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/docker/1/memory.limit_in_bytes": "1000",
        "memory/docker/1/memory.usage_in_bytes": "600",
        "memory/docker/1/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
        "cpu/docker/1/cpu.cfs_quota_us": "150000",
        "cpu/docker/1/cpu.cfs_period_us": "100000",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    groups = ControlGroups(tmp_path, own)
    assert (groups.memory_left(), groups.cores(), groups.processes_left()) == (450, 1.5, None)
    assert ControlGroups(tmp_path, tmp_path / "none").memory_left() is None


def test_a_wrong_date_and_a_clock_that_is_set_are_found() -> None:
    (finding,) = check_date(plan(), Surroundings(wall=lambda: 0.0))
    assert finding.severity == "error"
    assert finding.found == "the clock says 1970-01-01 00:00:00 UTC"
    assert "timedatectl set-ntp true" in finding.advice
    (finding,) = check_date(plan(), Surroundings(wall=lambda: 1.74e9))
    assert finding.severity == "warning"
    assert "the clock says 2025-02-19 21:20:00 UTC, but there are files of" in finding.found
    now = [1000.0]
    around = Surroundings(
        wall=lambda: 1.8e9 + 3 * now[0],
        monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    (finding,) = check_rate(plan(), around)
    assert finding.severity == "warning"
    assert "the wall clock moved by +600 ms against the monotonic clock" in finding.found


def test_the_clock_of_another_host_is_compared_where_it_answers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        now = 1.8e9

        def answer() -> None:
            _, asker = server.recvfrom(512)
            server.sendto(struct.pack("!40xII", int(now) + 90 + 2_208_988_800, 1 << 31), asker)

        thread = threading.Thread(target=answer)
        thread.start()
        around = Surroundings(wall=lambda: now, time_port=server.getsockname()[1])
        hosts = Hosts.read("a:1, 127.0.0.1:1, no-such-host.invalid:1")
        there, unknown = check_skew(plan(3, hosts=hosts), around)
        thread.join()
    assert (there.severity, there.found) == ("warning", "127.0.0.1 is 90.5 s ahead")
    assert unknown.severity == "ok"
    assert "is no name in this network" in unknown.found
    hosts = Hosts.read("a:1, 127.0.0.1:1")
    (silent,) = check_skew(plan(hosts=hosts), around)
    assert (silent.severity, "does not answer" in silent.found) == ("ok", True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no job at its top level"),
        ("import sys; sys.exit(3)", "does not load: line 1: SystemExit: 3"),
        ("def f(:", "does not load: SyntaxError"),
        (
            "import manyhands as mh\nfrom tests_job import job\nmh.train(job)",
            "line 3: RuntimeError: mh.train was called while a worker executed the script",
        ),
    ],
)
def test_a_script_that_does_not_load_is_named(tmp_path, monkeypatch, text, words) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    (tmp_path / "tests_job.py").write_text("job = None\n")
    (tmp_path / "script.py").write_text(text)
    job, (finding,) = load_script(tmp_path / "script.py", (), None)
    assert job is None
    assert finding.severity == "error"
    assert words in finding.found


def test_a_long_path_for_temporary_files_is_found(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("d" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    found = {one.name: one for one in examine(workers=2).all}
    assert found["temporary files"].severity == "error"
    assert "and 107 are allowed" in found["temporary files"].found
    assert "set TMPDIR to a shorter path" in found["temporary files"].advice


def test_wrong_hosts_and_strategies_are_findings() -> None:
    found = examine(strategy="nothing()", hosts="a")
    words = "\n".join(map(str, found.errors))
    assert "error: hosts: hosts 'a' are not of the form" in words
    assert "error: strategy:" in words


def test_the_threads_of_a_run_grow_with_its_workers() -> None:
    assert needed_threads(plan(64)) > needed_threads(plan(2)) + 62
