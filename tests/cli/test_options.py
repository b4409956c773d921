"""Functions and subcommands use the same words for the same things."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import manyhands as mh
from manyhands.cli.app import app

COMMANDS = typer.main.get_group(app).commands
ONE_RUN = ("train", "simulate", "forecast")
SEVERAL_RUNS = ("compare", "scaling")
OF_SEVERAL = {"workers", "seed", "output"}
"""These mean something else where there are several runs: a list, the first, another folder."""
TWO_MEANINGS = {"hosts": "of a live run a list of names, of a virtual comparison a number"}
VERBS = ("train", "simulate", "compare")
NO_SCRIPT = {"job"}
"""A function takes the job itself; a subcommand its name in the script."""


def options(command: str) -> dict[str, str]:
    """The help texts of a subcommand's options, by name."""
    return {
        str(parameter.name): str(parameter.help)
        for parameter in COMMANDS[command].params
        if parameter.param_type_name == "option" and not parameter.hidden
    }


def described(function: str) -> dict[str, str]:
    """The descriptions of a function's arguments, by name, each in one line."""
    text = (inspect.getdoc(getattr(mh, function)) or "").split("\nArgs:\n")[1]
    section = text.split("\n\nReturns:")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def shared(commands: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """By option, its help text in every subcommand that has it; those that several have."""
    found: dict[str, dict[str, str]] = {}
    for command in commands:
        for name, text in options(command).items():
            found.setdefault(name, {})[command] = text
    return {name: texts for name, texts in found.items() if len(texts) > 1}


@pytest.mark.parametrize("commands", [ONE_RUN, SEVERAL_RUNS], ids=" ".join)
def test_an_option_has_one_help_text(commands: tuple[str, ...]) -> None:
    for name, texts in shared(commands).items():
        assert len(set(texts.values())) == 1, (name, texts)


def test_an_option_has_one_help_text_for_one_run_and_for_several() -> None:
    for name, texts in shared((*ONE_RUN, *SEVERAL_RUNS)).items():
        if name not in OF_SEVERAL | set(TWO_MEANINGS):
            assert len(set(texts.values())) == 1, (name, texts)
    assert OF_SEVERAL | set(TWO_MEANINGS) <= set(shared((*ONE_RUN, *SEVERAL_RUNS)))


def test_every_option_is_explained_in_a_sentence() -> None:
    for command in COMMANDS:
        for name, text in options(command).items():
            assert text[:1].isupper(), (command, name, text)
            assert text.endswith("."), (command, name, text)


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_function_takes_its_subcommand_takes_under_the_same_name(verb: str) -> None:
    only_in_python = {"loop"}
    taken = set(inspect.signature(getattr(mh, verb)).parameters) - only_in_python
    assert taken <= set(options(verb)) | NO_SCRIPT
    missing = set(options(verb)) - taken - NO_SCRIPT
    # What a script has no use for: it is of the command, or of the job.
    allowed = {"durability", "patience", "key_file", "network", "quiet", "help"}
    assert missing <= (allowed if verb == "train" else {"help"})


def test_a_parameter_has_one_description_in_all_functions() -> None:
    found: dict[str, dict[str, str]] = {}
    for verb in VERBS:
        for name, words in described(verb).items():
            found.setdefault(name, {})[verb] = words
    for name in ("job", "epochs", "samples", "seconds", "target", "slow", "times", "latency"):
        assert len(set(found[name].values())) == 1, found[name]
    assert found["seed"]["train"] == found["seed"]["simulate"]
    assert found["output"]["train"] == found["output"]["simulate"]
    assert found["cluster"]["simulate"] == found["cluster"]["compare"]


@pytest.mark.parametrize("name", ["epochs", "samples", "seconds", "target", "seed", "times"])
def test_help_and_documentation_say_the_same(name: str) -> None:
    """The help text begins as the description of the function's argument does."""
    words = described("simulate")[name]
    text = options("simulate")[name]
    beginning = re.split(r"[,.:]", text)[0]
    assert words.lower().startswith(beginning.lower()), (text, words)


def test_types_agree() -> None:
    signatures = {verb: inspect.signature(getattr(mh, verb)).parameters for verb in VERBS}
    for name in signatures["train"].keys() & signatures["simulate"].keys() - {"hosts"}:
        ours = {signatures[verb][name].annotation for verb in VERBS if name in signatures[verb]}
        if name != "workers":
            assert len(ours) == 1, (name, ours)
    for name in ("times", "bandwidth", "latency", "cores"):
        assert signatures["simulate"][name] == signatures["compare"][name]


SCRIPT = """
import sys, torch
import manyhands as mh


DATA = torch.utils.data.TensorDataset(torch.eye(2).repeat(8, 1), torch.arange(16) % 2)
job = mh.Job(
    model=lambda: torch.nn.Linear(2, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.functional.cross_entropy, data=DATA, global_batch=8, epochs=1,
)
"""
PROGRAM = """
import json, sys
from pathlib import Path
from manyhands.notation import catalog

parse, parsed = catalog.parse, []
def counting(text):
    parsed.append(text)
    return parse(text)
catalog.parse = counting
from manyhands.cli import main

try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, [text for text in parsed if text.startswith("ssp")]]))
"""


@pytest.mark.parametrize(
    "given",
    [
        ["simulate", "--workers", "2", "--job", "job"],
        ["train", "--hosts", "a:9, b:9", "--workers", "4"],
        ["compare", "--virtual", "--workers", "2", "--repeats", "1"],
    ],
    ids=lambda given: given[0],
)
def test_the_text_of_a_strategy_is_parsed_once(given: list[str], tmp_path: Path) -> None:
    """In one process, from the command line to the end; `train` is refused for its hosts."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    verb, *rest = given
    option = "--strategies" if verb == "compare" else "--strategy"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, verb, "script.py", option, "ssp(staleness=4)", *rest],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    code, parsed = json.loads(done.stdout.splitlines()[-1])
    assert code == (2 if verb == "train" else 0), done.stderr
    assert parsed == ["ssp(staleness=4)"]
    if verb == "simulate":
        assert "--strategy 'ssp(staleness=4)' --workers 2" in done.stdout
        assert done.stdout.splitlines()[-2].endswith(" --job job")


def test_no_module_guesses_a_strategy_by_the_beginning_of_its_text() -> None:
    names = set(mh.strategies.names())
    guesses = []
    for path in Path(mh.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="startswith"), args=[ast.Constant(str(text))]
                ):
                    guesses += [str(path)] if text in names else []
    assert guesses == []
