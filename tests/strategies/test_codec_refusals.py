"""A codec where none can be used is refused when the text is read, with the reason."""

import pytest

import manyhands as mh


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hogwild(codec=half())", "workers share one memory"),
        ("central_storage(codec=half())", "on one host"),
        ("push_sum(codec=topk(0.01))", "would not fit the weight: use half()"),
        ("push_sum(codec=chain(topk(0.01), int8()))", "would not fit the weight"),
        ("push_sum(codec=onebit())", "would not fit the weight"),
        ("ensemble(codec=half())", "only to be evaluated"),
        ("hierarchical(codec=half())", "outer=diloco(codec=topk(0.01))"),
        ("single(codec=half())", "there is one worker"),
        ("zero(codec=half())", "use allreduce()"),
        ("tensor(codec=half())", "needed whole"),
        ("pipeline(codec=half())", "needed whole"),
        ("asynchronous(codec=powersgd(rank=2))", "'powersgd' is a reducer"),
        ("asynchronous(delay_compensation=0.1, codec=topk(0.1))", "add answer_codec=none"),
        ("asynchronous(codec=topk(2.0))", "fraction"),
    ],
)
def test_it_is_refused_with_the_reason(text, why) -> None:
    with pytest.raises(mh.NotationError, match=why.replace("(", r"\(").replace(")", r"\)")):
        mh.strategy(text)


@pytest.mark.parametrize(
    "text",
    [
        "asynchronous(codec=topk(fraction=0.05))",
        "diloco(every=100, codec=chunked_topk(chunk=256), answer_codec=int8())",
        "hierarchical(outer=diloco(codec=onebit()))",
        "ssp(codec=chain(topk(0.01), int8()), servers=2)",
        "asynchronous(codec=topk(feedback=false), answer_codec=none)",
        "push_sum(codec=int8())",
        "push_sum(graph=ring, codec=chain(int4(), deflate()))",
    ],
)
def test_a_strategy_with_a_codec_is_read_back(text) -> None:
    one = mh.strategy(text)
    assert mh.strategy(str(one)) == one
