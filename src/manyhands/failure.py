"""Errors that end a run, with messages that a user can act on."""

import contextlib
from collections.abc import Iterator


class Refused(ValueError):  # noqa: N818 - it names what happened, as users will read it
    """The request cannot be carried out, and nothing was started; the message says why.

    Example:
        >>> import manyhands as mh
        >>> issubclass(mh.Refused, ValueError)
        True
    """


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Context that turns a ValueError of a check into Refused."""
    try:
        yield
    except Refused:
        raise
    except ValueError as error:
        # The message says what to do; where the check stands would only hide the user's own line.
        raise Refused(str(error)) from None


class RunFailed(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A run ended early; the message names the process that failed and ends with its traceback.

    Example:
        >>> import manyhands as mh
        >>> issubclass(mh.RunFailed, RuntimeError)
        True
    """


class ProcessKilled(RunFailed):
    """A run ended because a process of it was killed, without which it could not go on."""


class StateLost(RunFailed):
    """No worker is left that has the parameters of the run: all were lost at about the same time.

    A worker that was restarted raises it, where there are no servers to get the parameters from.
    """

    def __init__(self) -> None:
        super().__init__(
            "no other worker has the parameters of this run any more, so a restarted worker cannot "
            "continue it: store checkpoints (--checkpoint), and continue from the last (--resume)"
        )


class OutOfMemory(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A worker ran out of memory; the message names strategies that need less."""


class PeerLost(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A collective failed because another worker was lost: a consequence, never the cause.

    The search for the first failure of a run ignores these errors.
    """


REMEDY = (
    "lower the learning rate, limit gradients with Job(clip=...), or train on with "
    "Job(stop_on_nan=False)"
)


class Diverged(RunFailed):
    """A loss became NaN or infinite; the message says where it was detected first."""


class ReplicasDiffer(RunFailed):
    """Replicas that must be equal are not; the message names the worker whose replica differs."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"{words}: a bit was flipped in memory or in a transfer, or the workers compute "
            "differently; test the memory of the host, or compare less often, or never, with "
            "allreduce(compare_every=0)"
        )


class Poisoned(Diverged, PeerLost):
    """As `Diverged`, on a worker whose parameters were not finite before: not the first cause."""
