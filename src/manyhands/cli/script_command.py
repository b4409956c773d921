"""A subcommand that executes a script: words after `--` are the script's, and no others."""

from typing import Any

import typer
from typer.core import TyperCommand

UsageError: Any = typer.BadParameter.__base__
"""The class of the parser's errors: of click, or of typer's own copy of it."""


class ScriptCommand(TyperCommand):
    """A subcommand whose arguments after `--` are handed to the script.

    A stray word before `--` is refused. It would be an argument of the script otherwise, and
    `--strategy ssp staleness=4` would train `ssp()` without a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before `--`; the words after it are the script's arguments."""
        own, script = args, []
        if "--" in args:
            cut = args.index("--")
            own, script = args[:cut], args[cut + 1 :]
        written = [*own]
        ctx.allow_interspersed_args = True
        try:
            rest = super().parse_args(ctx, own)
        except UsageError as error:
            _explain(error, self)
            raise
        if stray := ctx.params.get("arguments"):
            raise UsageError(_refusal(stray, written), ctx)
        if "arguments" in ctx.params:
            ctx.params["arguments"] = script or None
        elif script:
            raise UsageError(f"this command has no arguments after --, got {' '.join(script)}", ctx)
        return rest


def _refusal(stray: list[str], written: list[str]) -> str:
    """Why a word has no place, and where it belongs."""
    shown = " ".join(stray)
    if "--strategy" in written:
        given = written[written.index("--strategy") + 1 :]
        fields = [word for word in stray if "=" in word]
        if given and fields and "(" not in given[0]:
            inner = ", ".join(word.rstrip(",") for word in fields)
            return (
                f"unexpected {shown!r}: a strategy and its options are one text, in quotes: "
                f"--strategy '{given[0]}({inner})'. Arguments of the script follow after --"
            )
        if given and given[0].count("(") > given[0].count(")"):
            return (
                f"unexpected {shown!r}: the strategy's text contains a space, so put all of it in "
                "quotes: --strategy 'NAME(FIELD=VALUE, ...)'"
            )
    return f"unexpected {shown!r}: arguments of the script follow after --, as in -- {shown}"


def _explain(error: Any, command: TyperCommand) -> None:
    """Say where an option that is not ours may belong, and propose none that is hidden."""
    if not getattr(error, "option_name", None) or not hasattr(error, "possibilities"):
        return
    hidden = {
        name
        for parameter in command.params
        if getattr(parameter, "hidden", False)
        for name in parameter.opts
    }
    error.possibilities = [name for name in error.possibilities or () if name not in hidden]
    error.message = f"{error.message}. Options of the script follow after --"
