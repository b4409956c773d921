"""`python -m manyhands.testing`: check a protocol, or show one run of it.

python -m manyhands.testing my_protocol.py --strategy "quorum(wait_for=2)" --seeds 1000
python -m manyhands.testing my_protocol.py:QUORUM --seed 17
python -m manyhands.testing --strategy "ssp()" --mutants
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import testing
from manyhands.testing.account import account
from manyhands.testing.cases.problem import PROBES
from manyhands.testing.checking import CheckingPlan, check, make_plan
from manyhands.testing.laws.law import BrokenLawError
from manyhands.testing.mutations import mutants
from manyhands.testing.observation import one_thread
from manyhands.testing.replay import find_protocol, load_script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 1 if a law was broken, 2 if it cannot be run."""
    asked = _parser().parse_args(arguments)
    try:
        module, protocol = _protocol(asked)
        options: dict[str, Any] = {
            "laws": [_law(module, name) for name in asked.law],
            "without": [_law(module, name) for name in asked.without],
            "reference": _reference(module, asked.reference),
            "workers": _two(asked.workers),
        }
        if asked.seed is not None:
            return show(make_plan(protocol, faults=asked.faults, **options), asked.seed)
        if asked.mutants:
            reports = mutants(protocol, asked.seeds, **options)
            print(*reports, sep="\n")
            return 0 if all(report.seeds or report.same for report in reports) else 1
        print(
            check(
                protocol,
                asked.seeds,
                first=asked.first,
                faults=asked.faults,
                processes=asked.processes,
                **options,
            )
        )
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BrokenLawError as error:
        print(error, file=sys.stderr)
        return 1
    except (TypeError, ValueError) as error:
        print(f"manyhands.testing: {error}", file=sys.stderr)
        return 2
    return 0


def show(plan: CheckingPlan, seed: int) -> int:
    """Print an account of one run: its case, its events in order, and whether it broke a law."""
    print(f"seed {seed}: {plan.case(seed)}")
    print(f"(the last {PROBES} parameters of every shard are the probes of Weighting)")
    with one_thread():
        try:
            # The account comes first, so that it has the event that breaks a law.
            digest = CheckingPlan(
                plan.protocol, (account(print), *plan.laws), plan.workers, plan.faults
            ).run(seed)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
            law = error.law if isinstance(error, BrokenLawError) else type(error).__name__
            print(f"seed {seed} breaks {law}: {error}", file=sys.stderr)
            return 1
    print(f"seed {seed} breaks no law; digest of the run {digest[:16]}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m manyhands.testing",
        description="Check a protocol under random schedules and faults, or show one run of it.",
    )
    parser.add_argument(
        "script", nargs="?", help="a Python file with a protocol, or file.py:NAME of one"
    )
    parser.add_argument("--strategy", help="the protocol: its text, or its name in the script")
    parser.add_argument("--seed", type=int, help="show the run of this seed, event by event")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--mutants", action="store_true", help="plant faults, and say how many seeds find them"
    )
    parser.add_argument(
        "--law", action="append", default=[], help="a further law, by name; may be repeated"
    )
    parser.add_argument(
        "--without", action="append", default=[], help="a default law to leave out, by name"
    )
    parser.add_argument("--reference", help="the name of a reference server in the script")
    parser.add_argument(
        "--workers", default="2,6", help="least and largest number of workers (default: 2,6)"
    )
    parser.add_argument(
        "--no-faults", dest="faults", action="store_false", help="vary speeds and links only"
    )
    parser.add_argument("--processes", type=int, help="number of processes (default: by cores)")
    return parser


def _protocol(asked: argparse.Namespace) -> tuple[ModuleType | None, Any]:
    """The script, if there is one, and the protocol that the command names."""
    if asked.script is None:
        return None, find_protocol(None, asked.strategy, None)
    path, _, name = asked.script.partition(":")
    module = load_script(Path(path))
    return module, find_protocol(module, asked.strategy, name or None)


def _law(module: ModuleType | None, name: str) -> Any:
    """A law of the script, or of this package."""
    found = getattr(module, name, None) or getattr(testing, name, None)
    if found is None:
        raise ValueError(f"there is no {name} in the script or among the laws of manyhands.testing")
    return found


def _reference(module: ModuleType | None, name: str | None) -> Any:
    if name is not None and not hasattr(module, name):
        raise ValueError(f"there is no {name} at the top level of the script")
    return None if name is None else getattr(module, name)


def _two(text: str) -> tuple[int, int]:
    least, _, most = text.partition(",")
    try:
        return int(least), int(most or least)
    except ValueError:
        raise ValueError(f"--workers is two numbers, as in 2,6, got {text}") from None


if __name__ == "__main__":
    sys.exit(main())
