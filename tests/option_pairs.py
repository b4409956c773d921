"""Every option of every strategy, with a value that it may have beside its default.

An option that is accepted and ignored is found only by comparing two runs, so the tests of these
pairs ask for an effect or a refusal (`docs/decisions/0089-options-with-an-effect.md`).

The pairs are derived from the catalog: the strategies from their names, the options from the fields
of their classes, the other values from the types of the fields. A strategy within another one
(`hybrid(outer=…)`, both levels of `hierarchical`), an aggregator and a codec have options of their
own, and these are derived in the same way.

What cannot be derived is declared here: the least that a strategy needs (`BASES`), a value of a
field whose type does not give one (`VALUES`), and the other options without which one does nothing
(`CONTEXTS`). Such an option is tested alone, too: there it has to be refused.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from manyhands.codecs import CATALOG as CODECS
from manyhands.codecs import Codec
from manyhands.codecs.reducers import CATALOG as REDUCERS
from manyhands.notation import NotationError, Value
from manyhands.notation.fields import alternatives, annotations, classes, default, settable, words
from manyhands.notation.value import written
from manyhands.protocols.aggregation import CATALOG as AGGREGATORS
from manyhands.protocols.aggregation import Aggregator
from manyhands.strategies import CATALOG, strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

BASES: dict[str, tuple[str, int]] = {
    "single": ("", 1),
    "context": ("", 2),
    "hybrid": ("data=2, shard=2", 4),
    "offload": ("", 2),
    "pipeline": ("", 2),
    "place": ('modules=["0 on 0", "2 on 1"]', 2),
    "softsync": ("wait_for=2", 4),
    "local_sgd": ("every=2", 4),
    "diloco": ("every=4", 4),
    "hierarchical": ("outer=diloco(every=2), islands=2", 4),
    "gossip": ("", 5),
    "push_sum": ("", 5),
}
"""By strategy, the options of the strategy to which another is added, and the workers."""

VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("allreduce", "bucket_mb"): ("0.001",),
    ("context", "bucket_mb"): ("0.001",),
    ("zero", "bucket_mb"): ("0.001",),
    ("context", "ways"): ("4",),
    ("allreduce", "compare_every"): ("1",),
    ("softsync", "wait_for"): ("3",),
    ("context", "before"): ('"block2"',),
    ("hybrid", "data"): ("1",),
    ("hybrid", "shard"): ("1",),
    ("hybrid", "tensor"): ("2",),
    ("hybrid", "pipeline"): ("2",),
    ("hybrid", "together"): ("2",),
    ("hybrid", "plan"): ('["2 column", "4 row"]',),
    ("hybrid", "split_points"): ('["2"]',),
    ("hybrid", "codec"): ("bfloat16()",),
    ("fully_sharded", "codec"): ("bfloat16()",),
    ("pipeline", "stages"): ("4",),
    ("pipeline", "split_points"): ('["1"]',),
    ("pipeline", "microbatches"): ("2",),
    ("hybrid", "microbatches"): ("2",),
    ("place", "modules"): ('["0 on 0", "2 on 1", "4 on 1"]',),
    ("tensor", "ways"): ("4",),
    ("tensor", "plan"): ('["2 column", "4 row"]',),
    ("diloco", "every"): ("2",),
    ("easgd", "every"): ("3",),
    ("easgd", "rho"): ("0.1",),
    ("easgd", "alpha"): ("0.05",),
    ("broadcast", "early_workers"): ("2",),
    ("asynchronous", "delay_compensation"): ("100.0",),
    ("broadcast", "early_epochs"): ("3.0",),
    ("chunked_topk", "chunk"): ("64",),
    ("broadcast", "codec"): ("int8()", "none"),
    ("ssp", "staleness"): ("5",),
    ("hierarchical", "islands"): ("4",),
    ("clipped", "c"): ("0.001",),
    ("topk", "fraction"): ("0.2",),
    ("randomk", "fraction"): ("0.2",),
    ("sparse_sum", "fraction"): ("0.2",),
    ("chunked_topk", "fraction"): ("0.2",),
    ("chain", "a"): ("topk(0.5)",),
    ("chain", "b"): ("int8()",),
    ("threshold", "tau"): ("0.01",),
    ("deflate", "level"): ("9",),
    ("powersgd", "rank"): ("2",),
}
"""Other values of options, as text."""

REQUIRED: dict[str, str] = {
    "clipped": "c=0.01",
    "chain": "a=topk(0.2), b=deflate()",
    "threshold": "density=0.05",
    "krum": "f=1",
}
"""What a value without defaults needs."""


@dataclass(frozen=True)
class Context:
    """Other options with which an option has an effect."""

    given: str
    workers: int = 0
    """In place of those of the strategy; 0 for the same."""
    workers_without: int = 0
    """Of the strategy without the other value; 0 for those of the strategy."""
    value: str = ""
    """The other value, if not the usual one."""
    because: str = ""
    """Why the option alone need not be refused; empty if it has to be, or has an effect."""


CONTEXTS: dict[tuple[str, str], tuple[Context, ...]] = {
    ("allreduce", "find_unused"): (
        Context(
            "bucket_mb=0.001",
            because="with buckets of 25 MiB only a larger model has several, in another order",
        ),
    ),
    ("allreduce", "shared_memory"): (),
    ("context", "ways"): (Context("", workers=4),),
    ("hybrid", "data"): (Context("", workers=2),),
    ("hybrid", "shard"): (Context("", workers=2),),
    ("hybrid", "tensor"): (Context("", workers=8),),
    ("hybrid", "pipeline"): (Context("", workers=8),),
    ("hybrid", "plan"): (Context("shard=1, tensor=2"),),
    ("hybrid", "microbatches"): (Context("shard=1, pipeline=2"),),
    ("hybrid", "schedule"): (Context("shard=1, pipeline=2", value="gpipe"),),
    ("hybrid", "split_points"): (Context("shard=1, pipeline=2"),),
    ("hybrid", "together"): (
        Context("shard=1, outer=averaging(every=2)", workers=4, workers_without=2),
    ),
    ("pipeline", "stages"): (Context("schedule=zero_bubble"),),
    ("tensor", "ways"): (Context("", workers=4),),
    ("tensor", "samples"): (Context("", workers=2),),
    ("zero", "bucket_mb"): (Context("stage=2"), Context("stage=3")),
    ("broadcast", "early_epochs"): (Context("early_workers=2"),),
    ("gossip", "answer_codec"): (
        Context("order=asynchronous, graph=random_pairs, codec=int8()", value="half()"),
        Context("order=asynchronous, graph=random_pairs, codec=int8()", value="none"),
    ),
    ("gossip", "order"): (Context("graph=random_pairs"),),
}
"""By strategy and option, the contexts in which the option is tested beside being tested alone."""

EVERYWHERE: dict[str, tuple[Context, ...]] = {
    "answer_codec": (Context("codec=int8()", value="none"),),
}
"""The same for options that several strategies have."""


@dataclass(frozen=True)
class Pair:
    """A strategy, and the same with another value of one option."""

    strategy: str
    option: str
    without: str
    changed: str
    workers: int
    workers_without: int
    because: str = ""
    """Why the option need not have an effect here."""

    @property
    def name(self) -> str:
        """As in reports."""
        return f"{self.strategy}.{self.option}: {self.changed}"


def call(name: str, *given: str) -> str:
    """The text of a value; later options replace earlier ones.

    >>> call("diloco", "every=4", "every=2, servers=2")
    'diloco(every=2, servers=2)'
    """
    options: dict[str, str] = {}
    for text in given:
        options |= dict(one.split("=", 1) for one in _divided(text))
    return f"{name}({', '.join(f'{one}={value}' for one, value in options.items())})"


def _divided(text: str) -> Iterator[str]:
    """The options of a text, divided at the commas that are in no brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def others(cls: type[Any], field: Field[Any]) -> tuple[str, ...]:
    """Texts of other values of a field than its default."""
    if (declared := VALUES.get((cls.name, field.name))) is not None:
        return declared
    usual, types = default(field), alternatives(annotations(cls)[field.name])
    found = [f"{word}" for word in words(annotations(cls)[field.name]) if word != usual]
    kinds = classes(annotations(cls)[field.name])
    if any(issubclass(Codec, one) for one in kinds if one is not Value):
        found = ["int8()"] + (["none"] if type(None) in types and usual is not None else [])
    elif any(issubclass(Aggregator, one) for one in kinds if one is not Value):
        found = [call(one, REQUIRED.get(one, "")) for one in AGGREGATORS.names()]
    elif bool in types:
        found += [written(one, bool) for one in (True, False) if one is not usual]
    elif int in types:
        found.append(str(usual + 1) if isinstance(usual, int) else "2")
    elif float in types:
        found.append(str(usual / 2 or 0.5) if isinstance(usual, float) else "0.1")
    if not found:
        raise LookupError(
            f"declare another value of {cls.name}({field.name}=…) in VALUES of {__name__}: its "
            f"type, {annotations(cls)[field.name]}, gives none"
        )
    return tuple(found)


def of_class(name: str) -> type[Any]:
    """The class of a strategy, a codec or an aggregator."""
    return next(
        one._classes[name] for one in (CATALOG, CODECS, REDUCERS, AGGREGATORS) if name in one
    )


@cache
def pairs() -> tuple[Pair, ...]:
    """All of them."""
    found = [*_flat(), *_nested(), *_coded()]
    return tuple(dict.fromkeys(found))


def _flat() -> Iterator[Pair]:
    """Options of strategies; those that hold a strategy follow by themselves."""
    for name in CATALOG.names():
        cls = of_class(name)
        base, workers = BASES.get(name, ("", 4))
        for field in settable(cls):
            if Value in classes(annotations(cls)[field.name]):
                continue
            contexts = CONTEXTS.get((name, field.name), EVERYWHERE.get(field.name, ()))
            because = next((one.because for one in contexts if one.because), "")
            for value in others(cls, field):
                changed = f"{field.name}={value}"
                count = 5 if field.name == "aggregate" else workers
                own = "wait_for=5" if name == "softsync" and count == 5 else base
                yield Pair(
                    *(name, field.name, call(name, own), call(name, own, changed)),
                    *(count, count, because),
                )
                for one in contexts:
                    changed = f"{field.name}={one.value or value}"
                    yield Pair(
                        *(name, field.name, call(name, base, one.given)),
                        *(call(name, base, one.given, changed), one.workers or workers),
                        one.workers_without or workers,
                    )


def _nested() -> Iterator[Pair]:
    """Options of a strategy within another one, under every strategy that can be there."""
    for name in CATALOG.names():
        cls = of_class(name)
        base, workers = BASES.get(name, ("", 4))
        for field in settable(cls):
            if Value not in classes(annotations(cls)[field.name]):
                continue
            inner = [one for one in CATALOG.names() if _takes(name, base, f"{field.name}={one}()")]
            if not inner:
                raise LookupError(f"no strategy can be {field.name} of {name}: see BASES")
            own = strategy(call(name, base))
            for one in inner:
                within = BASES.get(one, ("", 0))[0]
                without = call(name, base, f"{field.name}={call(one, within)}")
                if strategy(without) != own:
                    yield Pair(name, field.name, call(name, base), without, workers, workers)
                for option in settable(of_class(one)):
                    for value in others(of_class(one), option):
                        changed = call(one, within, f"{option.name}={value}")
                        yield Pair(
                            *(name, f"{field.name}={one}.{option.name}", without),
                            *(call(name, base, f"{field.name}={changed}"), workers, workers),
                        )


def _takes(name: str, base: str, given: str) -> bool:
    try:
        strategy(call(name, base, given))
    except NotationError:
        return False
    return True


def _coded() -> Iterator[Pair]:
    """Options of codecs, reducers and aggregators."""
    carriers = (
        *((CODECS, one, "codec", 4) for one in ("synchronous", "allreduce")),
        (REDUCERS, "allreduce", "codec", 4),
        (AGGREGATORS, "synchronous", "aggregate", 5),
    )
    for catalog, carrier, option, workers in carriers:
        for name in catalog.names():
            cls, needed = of_class(name), REQUIRED.get(name, "")
            for field in settable(cls):
                for value in others(cls, field):
                    changed = call(name, needed, f"{field.name}={value}")
                    if name == "threshold" and field.name == "tau":
                        changed = call(name, f"tau={value}")
                    without = call(carrier, f"{option}={call(name, needed)}")
                    yield Pair(
                        *(carrier, f"{option}={name}.{field.name}", without),
                        *(call(carrier, f"{option}={changed}"), workers, workers),
                    )
