import doctest
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from manyhands.trace import Header, Record, clocks, live_header, recorder, records, trace_file


@pytest.mark.parametrize("module", [records, recorder, clocks])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0


def test_a_live_header_says_who_where_and_when() -> None:
    before = time.monotonic()
    header = live_header("worker", 3, clock=time.monotonic, wall=time.time)
    assert (header.role, header.rank, header.pid) == ("worker", 3, os.getpid())
    assert before <= header.clock <= time.monotonic()
    assert header.boot == live_header("agent", clock=time.monotonic, wall=time.time).boot


@pytest.mark.parametrize(
    ("role", "rank", "name"),
    [
        ("worker", 0, "worker-0"),
        ("server", 1, "server-1"),
        ("coordinator", 0, "coordinator"),
        ("agent", 0, "agent"),
        ("agent", 2, "agent-2"),
    ],
)
def test_a_process_is_named_by_role_and_rank(role: str, rank: int, name: str) -> None:
    header = Header(role=role, rank=rank, host="a", pid=1, boot="b", clock=0.0, wall=0.0)
    assert header.name == name
    assert trace_file(Path("runs/1"), header) == Path(f"runs/1/trace/{name}.jsonl")


def test_records_of_a_later_version_with_more_fields_are_read() -> None:
    line = b'["span","compute",1.0,2.0,3,"something new"]'
    assert msgspec.json.decode(line, type=Record) == records.Span("compute", 1.0, 2.0, 3)


def test_traces_load_without_torch() -> None:
    # `manyhands` itself is lazy, so what is loaded here is what these folders ask for.
    import subprocess

    code = (
        "import sys, manyhands.trace, manyhands.reports;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'zmq', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
