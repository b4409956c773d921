"""What virtual runs of one job find out about it once: sizes, programs, memory.

A plan makes hundreds of runs of the same job, which differ in seeds, limits and clusters. What
depends on the model and the other fields alone is kept as long as the function that creates it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from manyhands.job import Job

T = TypeVar("T")

_LIMITS: Final = frozenset(
    (
        *("seed", "epochs", "samples", "seconds", "target"),
        *("validation", "evaluate_every", "metrics", "_metrics"),
    )
)
"""Fields of a job that say how long it runs and what is measured, and not what a step is."""
_FOUND: WeakKeyDictionary[Any, dict[Hashable, tuple[Any, object]]] = WeakKeyDictionary()
"""By the function that creates a model."""


def remembered(job: Job, key: Hashable, find: Callable[[], T]) -> T:
    """What `find` returned for this job and this key; it is called once.

    Two jobs are the same if all fields but those that limit a run are the same objects.

    Args:
        job: the job.
        key: what is looked for.
        find: finds it.
    """
    values = [getattr(job, one.name) for one in fields(job) if one.name not in _LIMITS]
    try:
        found = _FOUND.setdefault(job.model, {})
    except TypeError:  # it cannot be referenced weakly
        return find()
    whole = (key, *map(id, values))
    if whole not in found:
        # The fields are kept beside it, so that no other object gets their identities; the model's
        # function is not, because it would then live for ever.
        kept = [value for value in values if value is not job.model]
        found[whole] = (find(), kept)
    return cast("T", found[whole][0])
