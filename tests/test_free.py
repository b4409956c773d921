"""Free parameters: bounds are never left, and discrete ones stay discrete."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import manyhands as mh
from manyhands.free import (
    Choice,
    FreeParameter,
    Integer,
    LogUniform,
    Sequence,
    Uniform,
    free_parameters,
    read_values,
    settled,
    written,
)

floats = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def uniforms(draw) -> Uniform:
    low = draw(floats)
    return Uniform(low, low + draw(st.floats(1e-3, 1e6)))


@st.composite
def logs(draw) -> LogUniform:
    low = draw(st.floats(1e-9, 1e3))
    return LogUniform(low, low * draw(st.floats(1.001, 1e6)))


@st.composite
def integers(draw) -> Integer:
    low = draw(st.integers(1, 1000))
    return Integer(low, low + draw(st.integers(1, 1000)), scale=draw(st.sampled_from(SCALES)))


SCALES = ("linear", "log")
plain = st.one_of(st.integers(-9, 9), st.sampled_from(["a", "b", "c(d=1)"]), st.booleans())
choices = st.lists(plain, min_size=2, max_size=6, unique_by=lambda one: (type(one), one)).map(
    lambda values: Choice(tuple(values))
)


@st.composite
def sequences(draw) -> Sequence:
    shortest = draw(st.integers(0, 3))
    return Sequence(draw(choices), shortest, shortest + draw(st.integers(1, 4)))


anything = st.one_of(uniforms(), logs(), integers(), choices, sequences())


@given(anything, st.integers(0, 2**32 - 1), st.floats(0.01, 3))
def test_no_value_is_outside(parameter: FreeParameter, seed: int, reach: float) -> None:
    generator = np.random.default_rng(seed)
    value = parameter.draw(generator)
    assert value in parameter
    assert parameter.start in parameter
    for _ in range(5):
        value = parameter.near(value, generator, reach)
        assert value in parameter


@given(st.one_of(integers(), choices, sequences()), st.integers(0, 2**32 - 1))
def test_a_near_discrete_value_is_another_one(parameter: FreeParameter, seed: int) -> None:
    generator = np.random.default_rng(seed)
    value = parameter.draw(generator)
    # As text, because True and 1 are equal.
    assert repr(parameter.near(value, generator)) != repr(value)


@given(st.one_of(uniforms(), logs(), integers(), choices), st.floats(-2, 3))
def test_every_position_has_a_value_and_every_value_its_position(parameter, position) -> None:
    value = parameter.at(position)
    assert value in parameter
    assert -1e-9 <= parameter.position(value) <= 1 + 1e-9
    again = parameter.at(parameter.position(value))
    if isinstance(parameter, Uniform):
        assert again == pytest.approx(value, rel=1e-6, abs=1e-6 * (parameter.high - parameter.low))
    else:
        assert again == value


@given(anything, st.integers(0, 2**32 - 1))
def test_a_value_is_read_back_from_its_text(parameter: FreeParameter, seed: int) -> None:
    value = parameter.draw(np.random.default_rng(seed))
    if isinstance(parameter, (Choice, Sequence)) and _is_ambiguous(parameter):
        return

    def job(it=parameter) -> None:
        raise NotImplementedError

    assert read_values({"it": written(value)}, job) == {"it": value}


def _is_ambiguous(parameter: Choice | Sequence) -> bool:
    values = parameter.values if isinstance(parameter, Choice) else parameter.of.values
    texts = [written(one) for one in values]
    return len(set(texts)) < len(texts) or any("," in one for one in texts)


def test_bounds_are_checked() -> None:
    for wrong in (
        lambda: mh.free.uniform(1, 1),
        lambda: mh.free.log(0, 1),
        lambda: mh.free.integer(3, 2),
        lambda: mh.free.integer(0, 2, scale="log"),
        lambda: mh.free.integer(0, 2, scale="cubic"),
        lambda: mh.free.choice(1),
        lambda: mh.free.choice(1, 1),
        lambda: mh.free.choice(1, 2, start=3),
        lambda: mh.free.uniform(0, 1, start=2),
        lambda: mh.free.sequence(mh.free.choice(1, 2), 2, 2),
    ):
        with pytest.raises(ValueError, match=r"must be|needs two"):
            wrong()
    with pytest.raises(TypeError, match="numbers, texts and truth values"):
        mh.free.choice(1, [2])
    with pytest.raises(TypeError, match="a sequence is of choices"):
        mh.free.sequence(mh.free.log(1, 2), 1, 2)


def test_values_are_checked_against_their_parameters() -> None:
    def job(lr=mh.free.log(1e-3, 1.0), depth=2) -> tuple[float, int]:
        return lr, depth

    assert [*free_parameters(job)] == ["lr"]
    assert settled(job, {}) == {"lr": pytest.approx(10**-1.5)}
    assert settled(job, {"lr": 0.5}) == {"lr": 0.5}
    with pytest.raises(ValueError, match=r"lr cannot be 2\.0: it is from 0\.001 to 1\.0"):
        settled(job, {"lr": 2.0})
    with pytest.raises(ValueError, match="depth is not a free parameter of the job; it has lr"):
        settled(job, {"depth": 3})
