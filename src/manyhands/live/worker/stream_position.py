"""The place in a stream up to which a worker has trained, for checkpoints."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from manyhands.data.stream import StreamPlace

if TYPE_CHECKING:
    from manyhands.sampling.stream_parts import StreamedBatch


class StreamPosition:
    """The last place in a stream that a worker knows, and the one at which it is to begin.

    A stream has places if it has `state_dict` and `load_state_dict`, and its state is plain JSON.
    Without them a run that continues reads the stream from its beginning, to the same sample.
    """

    def __init__(self) -> None:
        self.start: StreamPlace | None = None
        """Where to begin; None for the beginning."""
        self._last: dict[str, Any] | None = None
        self._warned = False

    def note(self, batch: StreamedBatch) -> None:
        """Note the place after a batch, which will be trained on before the next checkpoint."""
        if batch.note:
            _say(
                "warning: the stream could not be continued from its stored state, and is read "
                f"from its beginning: {batch.note}"
            )
        if batch.place is None:
            return
        known = msgspec.to_builtins(batch.place, builtin_types=())
        try:
            msgspec.json.encode(known)
        except (TypeError, ValueError, OverflowError) as error:
            if not self._warned:
                _say(
                    "warning: state_dict() of the stream is not plain JSON, so a run that "
                    f"continues reads the stream from its beginning: {error}"
                )
            self._last, self._warned = None, True
        else:
            self._last = known

    def state(self) -> dict[str, Any]:
        """The place, for a checkpoint; empty if there is none."""
        return self._last or {}

    def restore(self, state: dict[str, Any]) -> None:
        """Begin at a place."""
        if state:
            self.start = msgspec.convert(state, StreamPlace)


def _say(words: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()
