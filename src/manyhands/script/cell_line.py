"""A line in the output of a notebook's cell, which is rewritten in place."""

from __future__ import annotations

import uuid
from typing import Any

from manyhands.script.cells import is_notebook, shell


class CellLine:
    """One line below the cell that is being executed.

    Args:
        running: the IPython shell of the notebook's kernel.
    """

    def __init__(self, running: Any) -> None:
        self._publish = running.display_pub.publish
        self._id = uuid.uuid4().hex
        self._text = ""

    def show(self, text: str) -> None:
        """Replace the line; an empty text does not."""
        if text and text != self._text:
            self._publish(
                {"text/plain": text},
                transient={"display_id": self._id},
                update=bool(self._text),
            )
            self._text = text


def cell_line() -> CellLine | None:
    """A new line below the current cell; None if this process is not a notebook's kernel."""
    return CellLine(shell()) if is_notebook() else None
