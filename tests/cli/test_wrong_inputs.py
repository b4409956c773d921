"""Wrong inputs end in a short message that names the remedy, and never in frames of ours."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import Started, wait_for

JOB = """
import torch
import manyhands as mh

job = mh.Job(
    model=lambda: torch.nn.Linear(4, 1),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    loss=torch.nn.functional.mse_loss,
    data=torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1)),
    global_batch=16,
    epochs=1,
)
"""
HELPER = """
def outer(value):
    return inner(value)


def inner(value):
    return value.no_such_method()
"""
LINES = 12
"""Most lines of a message."""

Begin = Callable[..., Started]


def answer(begun: Started, code: int) -> str:
    """What a command printed; it must have ended with this exit code."""
    assert begun.finish(60) == code, begun.text()
    text = begun.text()
    assert len(text.splitlines()) <= LINES, text
    assert "/manyhands/cli/" not in text
    assert "/typer/" not in text
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def command(start: Begin, tmp_path: Path) -> Callable[..., Started]:
    def begin(script: str, *words: str, verb: str = "train", **environment: str) -> Started:
        path = tmp_path / "script.py"
        path.write_text(script, encoding="utf-8")
        environment = {"COLUMNS": "200", **environment}
        return start(sys.executable, "-m", "manyhands", verb, path.name, *words, **environment)

    return begin


REFUSED = {
    "an option of a strategy outside its text": (
        ("--strategy", "ssp", "staleness=4"),
        "--strategy 'ssp(staleness=4)'",
    ),
    "two options of a strategy outside its text": (
        ("--strategy", "ssp", "staleness=4,", "servers=2"),
        "--strategy 'ssp(staleness=4, servers=2)'",
    ),
    "a strategy's text without quotes": (
        ("--strategy", "ssp(staleness=4,", "servers=2)"),
        "put all of it in quotes",
    ),
    "a stray word": (("fast",), "arguments of the script follow after --, as in -- fast"),
    "an option of the script": (("--lr-decay", "3"), "Options of the script follow after --"),
    "a network without a unit": (("--network", "100"), "write 100mbit"),
    "a field that a strategy does not have": (
        ("--strategy", "ssp(stalness=4)"),
        "did you mean 'staleness'?",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_are_refused_before_the_script_is_executed(
    command: Callable[..., Started], case: str
) -> None:
    words, remedy = REFUSED[case]
    assert remedy in answer(command("raise SystemExit('executed')", *words), 2)


def test_no_hidden_option_is_proposed(command: Callable[..., Started]) -> None:
    text = answer(command(JOB, "--lonk", "3"), 2)
    assert "--link" not in text


@pytest.mark.parametrize(
    ("words", "verb", "remedy"),
    [
        (("--checkpoint", "10"), "train", "'10 steps' or '10 samples'"),
        (("--bandwidth", "100"), "simulate", "write 100mbit"),
        (("--strategy", "allreduce(codec=lazzy)"), "train", "codec"),
    ],
)
def test_a_value_without_a_unit_or_a_meaning_is_refused(
    command: Callable[..., Started], words: tuple[str, ...], verb: str, remedy: str
) -> None:
    assert remedy in answer(command(JOB, *words, verb=verb), 2)


@pytest.mark.parametrize("verb", ["train", "simulate"])
def test_an_error_of_the_script_is_shown_with_its_own_lines(
    command: Callable[..., Started], verb: str
) -> None:
    begun = command(f"{HELPER}\nouter(3)\n", verb=verb)
    text = answer(begun, 1)
    assert "in outer" in text
    assert "in inner" in text
    assert "'int' object has no attribute 'no_such_method'" in text


def test_an_error_in_a_job_is_shown_with_the_line_of_the_script(
    command: Callable[..., Started],
) -> None:
    text = answer(command(JOB.replace("global_batch=16", "global_batch=0")), 1)
    assert "script.py" in text
    assert "global_batch must be at least 1" in text


def test_whole_tracebacks_are_shown_on_request(command: Callable[..., Started]) -> None:
    begun = command(f"{HELPER}\nouter(3)\n", MANYHANDS_TRACEBACK="full")
    assert begun.finish(60) == 1
    assert "/manyhands/cli/" in begun.text()


def test_missing_data_is_named_with_all_its_files(
    command: Callable[..., Started], tmp_path: Path
) -> None:
    script = JOB.replace("data=torch", "validation=mh.data.mnist('test'),\n    data=torch")
    # No network is needed to find out that this one leads nowhere.
    nowhere = "http://127.0.0.1:9"
    proxies = {"http_proxy": nowhere, "https_proxy": nowhere, "no_proxy": ""}
    begun = command(script, MANYHANDS_CACHE=str(tmp_path), MANYHANDS_DATA="", **proxies)
    text = answer(begun, 2)
    assert text.index("downloading https://") == 0
    for name in ("train-images", "train-labels", "t10k-images", "t10k-labels"):
        assert f"{name}-idx" in text


LOOPS = """
def none(trainer):
    return


def three(trainer):
    for batch in trainer.batches():
        if batch.step == 3:
            return
        trainer.step(batch)


if __name__ == "__main__":
    print(mh.train(job, workers=2, loop={loop}).summary())
"""


def test_a_loop_that_trains_nothing_fails(run_script: Begin) -> None:
    begun = run_script(JOB + LOOPS.format(loop="none"))
    assert begun.finish(60) == 1
    assert "the training loop returned without a step: 0 of 64 samples" in begun.text()
    assert "/live/" not in begun.text()


def test_a_loop_that_returns_early_is_told(run_script: Begin) -> None:
    begun = run_script(JOB + LOOPS.format(loop="three"))
    assert begun.finish(60) == 0, begun.text()
    words = "finished: the training loop returned after 48 of 64 samples"
    assert words in " ".join(begun.text().split())


@pytest.mark.parametrize("verb", ["train", "simulate"])
def test_a_batch_larger_than_the_data_is_told(command: Callable[..., Started], verb: str) -> None:
    begun = command(JOB.replace("global_batch=16", "global_batch=640"), "--workers", "2", verb=verb)
    assert begun.finish(60) == 0, begun.text()
    assert "global_batch 640 is more than the 64 samples" in begun.text()


def test_a_codec_of_the_script_is_known_inside_a_built_in_strategy(
    command: Callable[..., Started],
) -> None:
    own = """
import dataclasses


@mh.register
@dataclasses.dataclass(frozen=True, repr=False)
class Lazy(mh.codecs.TopK):
    '''Sends the largest numbers.'''

    name = "lazy"
"""
    begun = command(JOB + own, "--strategy", "allreduce(codec=lazy(0.5))", "--workers", "2")
    assert begun.finish(60) == 0, begun.text()
    assert "codec=lazy(fraction=0.5)" in begun.text()


def test_a_host_that_joins_at_a_wrong_port_is_told_within_seconds(
    start: Begin, tmp_path: Path
) -> None:
    from manyhands.transport.listeners import listen
    from manyhands.transport.security import JobKey

    JobKey.new().write(tmp_path / "key")
    (tmp_path / "script.py").write_text(JOB)
    socket = listen("127.0.0.1", 0)
    port = socket.getsockname()[1]
    socket.close()
    begun = start(
        *(sys.executable, "-m", "manyhands", "join", f"127.0.0.1:{port}", "script.py"),
        *("--key-file", "key"),
    )
    words = f"nothing listens at port {port} there"
    wait_for(lambda: words in begun.text(), 20, "a word about the port")
