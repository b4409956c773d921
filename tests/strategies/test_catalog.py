"""Every strategy of the catalog can be written, read back and explained."""

import subprocess
import sys
from dataclasses import MISSING
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands import codecs
from manyhands.codecs import reducers
from manyhands.notation import NotationError, Value
from manyhands.notation.fields import alternatives, annotations, default, settable
from manyhands.placements import ALL, AllReduce, Placement, Single
from manyhands.protocols import aggregation
from manyhands.strategies import CATALOG, Strategy, names, strategy

CLASSES = tuple(CATALOG)


# Mostly the small numbers that ranges allow.
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(0, 64),
    float: st.floats(0, 64),
    str: st.text(max_size=20),
}


def held(annotation: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    if len(alternatives(annotation)) > 1:
        return st.one_of([held(alternative) for alternative in alternatives(annotation)])
    if annotation in PLAIN:
        return PLAIN[annotation]
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is tuple:
        return st.lists(held(get_args(annotation)[0]), max_size=3).map(tuple)
    assert issubclass(annotation, Value)
    return st.sampled_from([cls for cls in HELD if issubclass(cls, annotation)]).flatmap(values)


HELD = (
    *CLASSES,
    *(codec for codec in codecs.ALL if codec is not codecs.CodecChain),
    *reducers.ALL,
    *aggregation.ALL,
)
"""Classes that a field may hold; a chain holds codecs itself, and is tested with them."""


def values(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a class, up to three of them not its defaults.

    What its own check refuses is passed over.
    """
    fields = {field.name: held(annotations(cls)[field.name]) for field in settable(cls)}
    needed = {field.name for field in settable(cls) if default(field) is MISSING}
    optional = sorted(fields.keys() - needed)
    chosen: st.SearchStrategy[list[str]] = st.just([])
    if optional:
        chosen = st.lists(st.sampled_from(optional), max_size=3, unique=True)

    def drawn(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: fields[name] for name in (*sorted(needed), *names)})

    def build(arguments: dict[str, Any]) -> Any:
        try:
            return cls(**arguments)
        except ValueError:
            assume(False)

    return chosen.flatmap(drawn).map(build)


@pytest.mark.parametrize("cls", CLASSES)
@given(data=st.data())
def test_reads_back_from_its_text(cls: type[Strategy], data: st.DataObject) -> None:
    value = data.draw(values(cls))
    again = strategy(str(value))
    assert again == value
    assert type(again) is cls
    assert str(again) == repr(value)


@pytest.mark.parametrize("cls", CLASSES)
def test_is_explained(cls: type[Strategy]) -> None:
    description = CATALOG.describe(cls.name)
    assert description.summary.endswith(".")
    assert description.text
    for field in description.fields:
        assert field.text, f"{cls.name}.{field.name} has no docstring below it"
    assert cls.support in {"stable", "beta", "experimental"}


@pytest.mark.parametrize("cls", CLASSES)
def test_its_example_is_one(cls: type[Strategy]) -> None:
    assert type(strategy(CATALOG.describe(cls.name).example)) is cls


def test_every_placement_is_a_strategy() -> None:
    assert set(ALL) <= set(CLASSES)
    assert {"allreduce", "single"} <= set(names())


def test_a_strategy_stands_for_its_text() -> None:
    assert strategy("single") == strategy("single()") == Single()
    assert strategy("allreduce(10)") == AllReduce(bucket_mb=10)
    value = AllReduce(find_unused=True)
    assert strategy(value) is value
    assert isinstance(value, Placement)
    assert str(value) == "allreduce(find_unused=true)"


def test_misspelt() -> None:
    with pytest.raises(
        NotationError, match=r"no strategy 'alreduce'; did you mean 'allreduce'\? Known: allreduce"
    ):
        strategy("alreduce()")


def test_out_of_range_names_the_strategy() -> None:
    with pytest.raises(NotationError, match="allreduce: bucket_mb must be above 0"):
        strategy("allreduce(bucket_mb=0)")


def test_catalog_loads_without_torch() -> None:
    check = "import sys, manyhands.strategies; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
