"""Tree to value and back, the catalog's messages, and what hostile texts can do: nothing."""

import builtins
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.notation import Catalog, NotationError, Value
from manyhands.notation.grammar import MAX_LENGTH, _tokens

# Values as rich as the grammar.


@dataclass(frozen=True, repr=False)
class Codec(Value):
    """How an update travels."""


@dataclass(frozen=True, repr=False)
class TopK(Codec):
    """Send only the largest entries.

    The rest is kept.

    Example: `topk(0.5)`
    """

    name: ClassVar[str] = "topk"

    density: float = 0.01
    """The fraction of the entries
    that is sent."""
    feedback: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ValueError(f"density must be above 0 and at most 1, not {self.density}")


@dataclass(frozen=True, repr=False)
class Int4(Codec):
    name: ClassVar[str] = "int4"


@dataclass(frozen=True, repr=False)
class Recipe(Value):
    """What the tests read."""

    seed: int = field(default=0, kw_only=True)
    """Inherited by all."""


@dataclass(frozen=True, repr=False)
class Plain(Recipe):
    """Nothing but a seed."""

    name: ClassVar[str] = "plain"


@dataclass(frozen=True, repr=False)
class Stale(Recipe):
    """Bounded staleness."""

    name: ClassVar[str] = "stale"

    staleness: int
    """How far the fastest may run ahead."""
    servers: int = 1
    codec: Codec | None = None
    """How updates travel."""


@dataclass(frozen=True, repr=False)
class Gossip(Recipe):
    """Everything else that a field may be."""

    name: ClassVar[str] = "gossip"

    topology: Literal["ring", "exponential", "2d", "none"] | None = "ring"
    weights: tuple[float, ...] = (0.5, 0.5)
    label: str = "a label"
    note: str | None = None
    mix: Literal["auto"] | int | float = "auto"
    through: Literal["direct"] | Codec = "direct"
    table: tuple[tuple[int | None, ...], ...] = ()
    codecs: tuple[Codec, ...] = field(default_factory=lambda: (Int4(),))
    switch: bool | None = None
    derived: int = field(default=7, init=False)


@dataclass(frozen=True, repr=False)
class Layered(Recipe):
    """One recipe in another."""

    name: ClassVar[str] = "layered"

    inner: Recipe
    outer: Recipe


CODECS: Catalog[Codec] = Catalog("codec", (TopK, Int4))
RECIPES: Catalog[Recipe] = Catalog(
    kind="recipe",
    classes=(Plain, Stale, Gossip, Layered),
    nested=(CODECS,),
    aliases={"bounded": "stale"},
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(10**39), 10**39)
texts = st.text(alphabet=st.characters(), max_size=20)
codecs = st.one_of(
    st.builds(TopK, density=st.floats(0, 1, exclude_min=True), feedback=st.booleans()),
    st.just(Int4()),
)
simple = st.one_of(
    st.builds(Plain, seed=integers),
    st.builds(Stale, staleness=integers, servers=integers, codec=st.none() | codecs),
    st.builds(
        Gossip,
        topology=st.sampled_from(["ring", "exponential", "2d", "none", None]),
        weights=st.lists(numbers, max_size=5).map(tuple),
        label=texts,
        note=st.none() | texts,
        mix=st.just("auto") | integers | numbers,
        through=st.just("direct") | codecs,
        table=st.lists(st.lists(st.none() | integers, max_size=3).map(tuple), max_size=3).map(
            tuple
        ),
        codecs=st.lists(codecs, max_size=3).map(tuple),
        switch=st.none() | st.booleans(),
        seed=integers,
    ),
)
recipes = st.recursive(simple, lambda inner: st.builds(Layered, inner, inner), max_leaves=4).filter(
    lambda value: len(str(value)) <= MAX_LENGTH
)


# Values and texts.


@given(recipes)
@example(Gossip(weights=(5e-324, -1.7976931348623157e308, -0.0, 1e16, 1e-5)))
@example(Gossip(label='"\\\n\t\0\u2028\udc80é😀', note=""))
@example(Gossip(topology="none"))
@example(Gossip(topology=None))
@example(Gossip(topology="2d"))
def test_a_value_reads_back_from_its_text(value: Recipe) -> None:
    text = str(value)
    again = RECIPES.read(text)
    assert again == value
    assert type(again) is type(value)
    assert str(again) == text


@given(recipes, st.data())
def test_whitespace_means_nothing(value: Recipe, data: st.DataObject) -> None:
    space = st.text(" \t\r\n", max_size=3)
    pieces = [token.text for token in _tokens(str(value))]
    spaced = "".join(data.draw(space) + piece for piece in pieces) + data.draw(space)
    if len(spaced) <= MAX_LENGTH:
        assert RECIPES.read(spaced) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Plain(), "plain()"),
        (Plain(seed=3), "plain(seed=3)"),
        (Stale(4), "stale(staleness=4)"),
        (Stale(4, 2, TopK(0.5)), "stale(staleness=4, servers=2, codec=topk(density=0.5))"),
        (Gossip("exponential"), "gossip(topology=exponential)"),
        (Gossip("2d"), 'gossip(topology="2d")'),
        (Gossip(None), "gossip(topology=none)"),
        (Gossip(weights=(1, 2.5)), "gossip(weights=[1.0, 2.5])"),
        (Gossip(mix=1), "gossip(mix=1)"),
        (Gossip(mix=1.0), "gossip(mix=1.0)"),
        (Gossip(note="ring"), 'gossip(note="ring")'),
        (Gossip(codecs=()), "gossip(codecs=[])"),
        (Gossip(table=((1, None), ())), "gossip(table=[[1, none], []])"),
        (Gossip(switch=False), "gossip(switch=false)"),
        (
            Layered(Plain(), Stale(1, codec=Int4())),
            "layered(inner=plain(), outer=stale(staleness=1, codec=int4()))",
        ),
    ],
)
def test_canonical_text(value: Recipe, text: str) -> None:
    assert str(value) == repr(value) == f"{value}" == text
    assert RECIPES.read(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", Plain()),
        ("bounded(4)", Stale(4)),
        ("stale(4, 2, int4)", Stale(4, 2, Int4())),
        ("stale(4, codec=none)", Stale(4)),
        ('gossip("ring")', Gossip()),
        ("gossip(through=int4)", Gossip(through=Int4())),
        ("gossip(weights=[1, 2])", Gossip(weights=(1.0, 2.0))),
        (
            "layered(plain, outer=layered(plain, plain))",
            Layered(Plain(), Layered(Plain(), Plain())),
        ),
    ],
)
def test_reads_what_is_not_canonical(text: str, value: Recipe) -> None:
    assert RECIPES.read(text) == value


def test_integers_become_floats_where_floats_are_asked_for() -> None:
    value = CODECS.read("topk(1)")
    assert isinstance(value, TopK)
    assert type(value.density) is float


def test_an_alias_is_read_and_never_written() -> None:
    assert str(RECIPES.read("bounded(4)")) == "stale(staleness=4)"
    assert "bounded" in RECIPES
    assert "bounded" not in RECIPES.names()


def test_a_value_is_returned_as_it_is() -> None:
    value = Plain()
    assert RECIPES.read(value) is value


@pytest.mark.parametrize("source", [3, None, b"plain", Int4(), Plain])
def test_neither_text_nor_value(source: object) -> None:
    with pytest.raises(TypeError, match=r"not a recipe; .* one of: plain, stale, gossip, layered"):
        RECIPES.read(source)  # type: ignore[arg-type] # that is the test


def test_infinite_numbers_can_be_shown_but_not_read() -> None:
    assert str(Gossip(mix=float("inf"))) == "gossip(mix=inf)"
    for text in ("gossip(mix=inf)", "gossip(mix=nan)", "gossip(mix=-inf)", "gossip(mix=1e999)"):
        with pytest.raises(NotationError):
            RECIPES.read(text)


def test_what_has_no_text_says_so() -> None:
    with pytest.raises(TypeError, match=r"\[1\.0\] has no text form"):
        str(Gossip(weights=[1.0]))  # type: ignore[arg-type] # that is the test


# Messages.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "plian",
            "there is no recipe 'plian'; did you mean 'plain'? Known: gossip, layered, plain,",
        ),
        ("bouned(4)", "there is no recipe 'bouned'; did you mean 'bounded'? Known: gossip,"),
        ("qqq()", "there is no recipe 'qqq'. Known: gossip, layered, plain, stale"),
        ("topk(0.5)", "'topk' is a codec, and a recipe was expected. Known: gossip,"),
        ("true", "there is no recipe 'true'. Known"),
        ("3", "expected a recipe written as name(…), found 3"),
        ('"plain"', 'expected a recipe written as name(…), found "plain"'),
        ("[plain]", "expected a recipe written as name(…), found a list"),
        ("stale", "stale needs 'staleness': integer"),
        (
            "stale(4, stalenes=3)",
            (
                "stale has no field 'stalenes'; did you mean 'staleness'? "
                "Known: codec, seed, servers, staleness"
            ),
        ),
        ("stale(4, staleness=3)", "'staleness' is given twice, by position and by name"),
        (
            "stale(1, 2, none, 4)",
            "stale takes at most 3 arguments without a name: staleness, servers, codec",
        ),
        ("plain(4)", "plain takes arguments by name only: seed"),
        ("stale(4, codec=int4(1))", "int4 takes no arguments"),
        ("stale(4, codec=int4(a=1))", "int4 takes no arguments"),
        ("stale(4.0)", "expected integer for 'staleness' of stale, found 4.0"),
        ("stale(true)", "expected integer for 'staleness' of stale, found 'true'"),
        ('stale("4")', "expected integer for 'staleness' of stale, found \"4\""),
        (
            "stale(4, codec=topkk)",
            (
                "expected codec or none for 'codec' of stale, found 'topkk'; did you mean 'topk'? "
                "Known: int4, topk"
            ),
        ),
        ("stale(4, codec=nome)", "did you mean 'none'? Known: int4, topk"),
        (
            "stale(4, codec=topkk(1))",
            "there is no codec 'topkk'; did you mean 'topk'? Known: int4,",
        ),
        ("stale(4, codec=plain)", "'plain' is a recipe, and a codec was expected. Known: int4,"),
        ("stale(4, codec=[int4])", "expected codec or none for 'codec' of stale, found a list"),
        ("stale(4, codec=topk(2))", "topk: density must be above 0 and at most 1, not 2.0"),
        ("gossip(rng)", "found 'rng'; did you mean 'ring'?"),
        ("gossip(switch=fasle)", "found 'fasle'; did you mean 'false'?"),
        (
            "gossip(weights=[1, a])",
            "expected number for 'weights' of gossip, found 'a'",
        ),
        ("gossip(weights=1)", "expected list of number for 'weights' of gossip, found 1"),
        ("gossip(label=int4())", "expected text for 'label' of gossip, found int4(…)"),
        ("gossip(derived=1)", "gossip has no field 'derived'"),
        ("layered(plain, int4)", "'int4' is a codec, and a recipe was expected"),
    ],
)
def test_problem(text: str, problem: str) -> None:
    with pytest.raises(NotationError) as caught:
        RECIPES.read(text)
    assert problem in caught.value.problem


def test_caret_stands_under_the_name_that_is_wrong() -> None:
    with pytest.raises(NotationError) as caught:
        RECIPES.read("layered(plain, stale(4, sevrers=2))")
    assert str(caught.value).splitlines() == [
        (
            "stale has no field 'sevrers'; did you mean 'servers'? "
            "Known: codec, seed, servers, staleness"
        ),
        "  layered(plain, stale(4, sevrers=2))",
        "                          ^",
    ]


# The catalog itself.


def test_names_and_classes() -> None:
    assert RECIPES.names() == ("plain", "stale", "gossip", "layered")
    assert tuple(RECIPES) == (Plain, Stale, Gossip, Layered)
    assert "plain" in RECIPES
    assert "topk" not in RECIPES
    assert 3 not in RECIPES
    assert RECIPES["bounded"] is Stale


def test_describe() -> None:
    description = CODECS.describe("topk")
    assert description.name == "topk"
    assert description.summary == "Send only the largest entries."
    assert description.text == "The rest is kept.\n\nExample: `topk(0.5)`"
    assert description.signature == "topk(density=0.01, feedback=true)"
    assert description.example == "topk(0.5)"
    assert description.fields == (
        ("density", "number", "0.01", "The fraction of the entries that is sent."),
        ("feedback", "true or false", "true", ""),
    )


def test_describe_puts_types_in_words_and_inherits_docstrings() -> None:
    fields = {field.name: field for field in RECIPES.describe("gossip").fields}
    assert {name: field.type for name, field in fields.items()} == {
        "topology": "ring or exponential or 2d or none",
        "weights": "list of number",
        "label": "text",
        "note": "text or none",
        "mix": "auto or integer or number",
        "through": "direct or codec",
        "table": "list of list of integer or none",
        "codecs": "list of codec",
        "switch": "true or false or none",
        "seed": "integer",
    }
    assert fields["seed"].text == "Inherited by all."
    assert fields["codecs"].default == "[int4()]"
    stale = RECIPES.describe("bounded")
    assert stale.name == "stale"
    assert stale.fields[0].default == "required"
    assert stale.signature == "stale(staleness, servers=1, codec=none, seed=0)"
    assert stale.example == "stale()"


def test_describe_without_docstring() -> None:
    description = CODECS.describe("int4")
    assert (description.summary, description.text, description.fields) == ("", "", ())


def test_describe_names_the_nearest() -> None:
    with pytest.raises(NotationError, match="no recipe 'plan'; did you mean 'plain'"):
        RECIPES.describe("plan")
    with pytest.raises(NotationError) as caught:
        RECIPES.describe("\x1b[31m\udc80")
    assert caught.value.problem.isprintable()


def _refused(annotation: object, default: object = None) -> type[Value]:
    body = {"__annotations__": {"held": annotation}, "held": default, "name": "refused"}
    return dataclass(frozen=True, repr=False)(type("Refused", (Value,), body))


@pytest.mark.parametrize(
    "annotation",
    [
        dict[str, int] | None,
        list[int] | None,
        tuple[int, int] | None,
        tuple[int, ...] | tuple[str, ...],
        tuple[bytes, ...],
        Literal[1, 2],
        bytes,
        object,
        Callable[[], int] | None,
    ],
)
def test_a_class_that_could_not_be_read_back_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"Refused\.held cannot be written as text"):
        Catalog("recipe", (_refused(annotation),))


def test_a_class_with_its_own_repr_is_refused() -> None:
    @dataclass(frozen=True)
    class Checkpointed(Value):
        name: ClassVar[str] = "forgetful"

    with pytest.raises(TypeError, match=r"say @dataclass\(frozen=True, repr=False\)"):
        Catalog("recipe", (Checkpointed,))


def test_a_class_that_is_no_dataclass_is_refused() -> None:
    class Undecorated(Plain):
        name: ClassVar[str] = "undecorated"

    with pytest.raises(TypeError, match="has to be a @dataclass"):
        Catalog("recipe", (Undecorated,))


@pytest.mark.parametrize("name", ["Topk", "top-k", "true", "", "_topk", "tоpk"])
def test_a_name_outside_the_grammar_is_refused(name: str) -> None:
    cls = dataclass(frozen=True, repr=False)(type("Named", (Value,), {"name": name}))
    with pytest.raises(TypeError, match="is not a name in text"):
        Catalog("recipe", (cls,))
    with pytest.raises(TypeError, match="is not a name in text"):
        Catalog("recipe", (Plain,), aliases={name: "plain"})


def test_a_type_that_cannot_be_resolved_is_refused() -> None:
    with pytest.raises(TypeError, match="import them outside TYPE_CHECKING"):
        Catalog("recipe", (_refused("Elsewhere"),))


def test_one_name_means_one_class() -> None:
    with pytest.raises(TypeError, match="two classes have the name 'topk'"):
        Catalog("recipe", (Plain,), nested=(CODECS,), aliases={"topk": "plain"})
    Catalog("recipe", (Plain,), nested=(CODECS, Catalog("outer", (Stale,), nested=(CODECS,))))


def test_an_alias_has_to_lead_somewhere() -> None:
    with pytest.raises(TypeError, match="alias 'p': there is no recipe 'plane'"):
        Catalog("recipe", (Plain,), aliases={"p": "plane"})


# Hostile texts.

VALID = (
    "plain()",
    "stale(staleness=4, servers=2, codec=topk(0.01))",
    'gossip(ring, weights=[0.5, 1e-05], label="a \\"b\\" \\u{7f}", table=[[1, none], []])',
    "layered(inner=plain, outer=layered(plain(), stale(4, codec=int4())))",
)

ATTACKS = (
    "__import__('os').system('x')",
    '__import__("os").system("x")',
    "import os",
    "eval(\"__import__('os')\")",
    'eval("1")',
    'exec("1")',
    "open(plain)",
    "os.system(plain)",
    "plain.__class__.__mro__",
    "plain().__class__",
    "().__class__.__bases__[0].__subclasses__()",
    "lambda: 0",
    "(lambda: 0)()",
    'f"{plain}"',
    'plain(seed=f"{1}")',
    "[x for x in plain]",
    "plain() if true else plain()",
    "plain(*[1])",
    "plain(**{})",
    "plain(__class__=1)",
    "plain(name=1)",
    "value()",
    "recipe()",
    "codec()",
    "plain;plain",
    "plain\0",
    "\0",
    "plain(seed=0x10)",
    "plain(seed=1_000)",
    "plain(seed=1j)",
    "plain(seed=9**9**9)",
    "plain(seed=inf)",
    "plain(seed=nan)",
    "plain(seed=１)",
    "рlain()",
    "plain（）",
    "ｐlain()",
    "\ufeffplain",
    "pla\u200bin",
    "\u202eplain",
    "\ud800",
    '"\ud800"',
    "plain(seed=" + "9" * 400 + ")",
    "plain(seed=" + "9" * 4000 + ")",
    "plain(seed=" + "9" * 1_000_000 + ")",
    "plain(seed=1e" + "9" * 30 + ")",
    "gossip(mix=1e-" + "9" * 30 + ")",
    "(" * 100_000,
    "plain(" * 100_000,
    "[" * 100_000,
    "[" * 4096,
    "f(" * 2048,
    "f(" * 1000 + ")" * 1000,
    "gossip(weights=" + "[" * 2000 + "]" * 2000 + ")",
    "plain(" + "a=1," * 1000 + ")",
    "plain(" + "1," * 1000 + ")",
    "a" * 4096,
    "a" * 1_000_000,
    '"' * 4095,
    "\\" * 4096,
    '"' + "\\" * 4094,
    " " * 1_000_000,
    "," * 4096,
    "=" * 4096,
    "-" * 4096,
    "1." * 2048,
    "1e" * 2048,
    "a=" * 2048,
)

CHARACTERS = "()[],=\"'\\.-+eE_ \t\n\r\0019azAZ{}:;*@#$%&\u00a0\u0430\u2028\ud800\U0001f600\uff08"


def hostile_texts(count: int) -> Iterator[str]:
    """The attacks, then mutations of valid texts and random bytes; the same in every run."""
    yield from ATTACKS
    rng = random.Random(20250729)  # noqa: S311 - a seed, not a secret
    for index in range(count - len(ATTACKS)):
        if index % 4 == 0:
            coding = rng.choice(["utf-8", "latin-1", "utf-16-le"])
            yield rng.randbytes(rng.randrange(200)).decode(coding, "replace")
        elif index % 4 == 1:
            yield "".join(rng.choices(CHARACTERS, k=rng.randrange(100)))
        else:
            yield mutated(rng.choice(VALID), rng)


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.randrange(8))
        piece = rng.choice(["", rng.choice(CHARACTERS), text[start:end] * 2, rng.choice(VALID)])
        text = text[:start] + piece + text[end:]
    return text


@pytest.mark.timeout(60)
def test_hostile_texts_give_a_value_or_an_error_and_run_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = list(hostile_texts(10_000))
    allowed = {TopK, Int4, Plain, Stale, Gossip, Layered}
    ran: list[str] = []
    outcomes: list[Value | NotationError] = []
    messages: list[str] = []

    def forbidden(called: str) -> Callable[..., None]:
        def record(*_: object, **__: object) -> None:
            ran.append(called)
            raise AssertionError(called)

        return record

    with monkeypatch.context() as patch:
        patch.setattr(os, "system", forbidden("os.system"))
        for name in ("eval", "exec", "compile", "open", "input", "__import__"):
            patch.setattr(builtins, name, forbidden(name))
        for text in texts:
            try:
                outcomes.append(RECIPES.read(text))
            except NotationError as error:
                outcomes.append(error)
                messages.append(str(error))

    assert ran == []
    assert max(map(len, messages)) < 1000
    assert len(outcomes) == len(texts)
    values = [outcome for outcome in outcomes if isinstance(outcome, Value)]
    # Mutations hit both sides, or the test would show little.
    assert 100 < len(values) < len(texts) - 1000
    assert {type(value) for value in values} <= allowed
    for value in values:
        assert RECIPES.read(str(value)) == value


@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: ascii(text[:20]))
def test_every_attack_is_refused(text: str) -> None:
    with pytest.raises(NotationError) as caught:
        RECIPES.read(text)
    assert len(str(caught.value)) < 1000
