"""The errors that a run ends with, in words a user can act on."""


class RunFailed(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A run ended before it was done; the message says who failed and ends with its traceback."""


class OutOfMemory(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A worker's memory did not suffice; the message says which strategies need less."""


class PeerLost(RuntimeError):  # noqa: N818 - it names what happened, as users will read it
    """A collective broke because another worker is gone: a consequence, never the cause.

    When a run's first failure is looked for, these are passed over.
    """
