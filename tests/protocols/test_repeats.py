"""Calls whose answer was lost are answered again, and only with what they have room for."""

from __future__ import annotations

import pytest

from manyhands.endpoint import Arrived, Change, Join, Mix, Pull, Push, Rest, Terms, Turn
from manyhands.protocols import ALL, Call

MESSAGES = (Pull(), Push(0, 4), Rest(), Turn(), Change(0), Arrived(), Join(0, ()), Mix(0, ()))


@pytest.mark.parametrize("protocol", ALL, ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_call_without_room_is_answered_again_without_parameters(protocol, message):
    strategy = protocol()
    state = strategy.begin(Terms(8, 4))
    answer = strategy.on_repeat(state, Call("worker-1", 3, message, room=False))
    assert not answer.parameters
