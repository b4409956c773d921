"""Texts with ranges and sets in them, and the texts that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.notation import NotationError, alternatives, has_sweep
from manyhands.notation.sweeps import MAX_VALUES


def texts(sweep: str) -> list[str]:
    return [each.text for each in alternatives(sweep)]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("softsync(wait_for=1..3)", ["softsync(wait_for=1)", "softsync(wait_for=2)"]),
        ("ssp(staleness=0..8 step 4)", ["ssp(staleness=0)", "ssp(staleness=4)"]),
        ("diloco(every={10, 50})", ["diloco(every=10)", "diloco(every=50)"]),
        ("gossip(graph={ring, f(a, b)})", ["gossip(graph=ring)", "gossip(graph=f(a, b))"]),
        ("easgd(rho=0.1..0.3 step 0.1)", ["easgd(rho=0.1)", "easgd(rho=0.2)", "easgd(rho=0.3)"]),
        ("workers=2 .. 6 step 2", ["workers=2", "workers=4"]),
        ('x("1..3", {a, b})', ['x("1..3", a)', 'x("1..3", b)']),
        ("a(x=1..2, y={u, v})", ["a(x=1, y=u)", "a(x=1, y=v)", "a(x=2, y=u)"]),
    ],
)
def test_a_sweep_stands_for_texts_in_the_order_of_its_values(sweep: str, expected) -> None:
    assert texts(sweep)[: len(expected)] == expected


def test_a_value_knows_its_place() -> None:
    (first, *_) = alternatives("hybrid(a(1, [2, 3..4]), inner=ssp(0..1))")
    assert first.values == (((0, 0, 1, 1), "3"), ((0, "inner", 0), "0"))
    (only, _) = alternatives("bandwidth={10mbit, 1gbit}")
    assert only.values == ((("bandwidth",), "10mbit"),)


@pytest.mark.parametrize(
    ("sweep", "at", "problem"),
    [
        ("ssp(4)", 0, "expected a range or a set"),
        ("ssp(1..)", 5, "a number on both sides"),
        ("ssp(staleness=..4)", 14, "a number on both sides"),
        ("ssp(8..1)", 4, "upwards: 1..8"),
        ("ssp(1..3 step 0)", 14, "a step must be above 0"),
        ("ssp(1..300)", 4, "at most 100 values"),
        ("a(x=1..20, y=1..20)", 13, "at most 100 values"),
        ("ssp({})", 5, "expected a value in the set"),
        ("ssp({1,,2})", 7, "expected a value in the set"),
        ("ssp({1, 2)", 4, "no closing '}'"),
        ("ssp({1..2, 4})", 5, "no range, no set in it"),
        ("ssp({1, 2, 1})", 10, "1 is in the set twice"),
    ],
)
def test_a_mistake_is_shown_at_its_position(sweep: str, at: int, problem: str) -> None:
    with pytest.raises(NotationError, match=problem) as refused:
        alternatives(sweep)
    assert refused.value.at == at
    assert refused.value.text == sweep


@given(st.integers(-50, 50), st.integers(0, MAX_VALUES - 1), st.integers(1, 9))
def test_a_range_has_both_ends(first: int, count: int, step: int) -> None:
    last = first + count * step
    written = texts(f"f(x={first}..{last} step {step})")
    assert written == [f"f(x={value})" for value in range(first, last + 1, step)]


@given(st.text(max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    has_sweep(text)
    try:
        found = alternatives(text)
    except NotationError as error:
        found, at = (), error.at
    else:
        at = 0
    assert len(found) <= MAX_VALUES
    assert 0 <= at <= len(text)
