"""The errors that a run ends with, in words a user can act on."""

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
    """Have what checks find fault with refused."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error


class RunFailed(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A run ended early; the message names the process that failed and ends with its traceback.

    Example:
        >>> import manyhands as mh
        >>> issubclass(mh.RunFailed, RuntimeError)
        True
    """


class OutOfMemory(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A worker's memory did not suffice; the message says which strategies need less."""


class PeerLost(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A collective broke because another worker is gone: a consequence, never the cause.

    When a run's first failure is looked for, these are passed over.
    """


REMEDY = (
    "lower the learning rate, limit gradients with Job(clip=...), or train on with "
    "Job(stop_on_nan=False)"
)


class Diverged(RunFailed):
    """A loss became NaN or infinite; the message says where it was seen first."""


class Poisoned(Diverged, PeerLost):
    """The same, on a worker whose parameters were not finite already: another one may be first."""
