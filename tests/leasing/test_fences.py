"""Fences refuse incarnations that are over, and notify the protocol once of a loss."""

from manyhands.leasing.fences import Fences


def test_a_fence_is_put_once_and_what_comes_later_of_that_life_is_refused():
    fences = Fences()
    assert fences.judge("worker-1.1") == "known"
    assert fences.put("worker-1", 2)
    assert not fences.put("worker-1", 2)
    assert fences.judge("worker-1.1") == "over"
    assert fences.judge("worker-1.2") == "known"
    assert fences.judge("worker-0.1") == "known"


def test_a_life_that_never_called_is_refused_after_its_fence():
    fences = Fences()
    assert fences.put("worker-1", 2), "the protocol waits for it, although it never called"
    assert fences.judge("worker-1.1") == "over"


def test_a_successor_that_is_faster_than_the_news_of_the_loss_is_not_taken_for_lost():
    fences = Fences()
    assert fences.judge("worker-1.1") == "known"
    assert fences.judge("worker-1.2") == "successor"
    assert fences.judge("worker-1.2") == "known"
    assert fences.judge("worker-1.1") == "over"
    assert not fences.put("worker-1", 2)


def test_a_server_that_was_started_again_does_not_take_a_successor_for_lost():
    fences = Fences()
    fences.restore(["worker-1.1", "worker-1.2", "worker-0.1"])
    assert not fences.put("worker-1", 2)
    assert fences.put("worker-0", 2)
    assert fences.judge("worker-1.1") == "over"
