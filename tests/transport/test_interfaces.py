"""Addresses: reading, writing, and those of this host."""

import pytest

from manyhands.transport.interfaces import address_towards, read_place, resolve, write_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1:40001", ("10.0.0.1", 40001)),
        ("job-0.job:40001", ("job-0.job", 40001)),
        ("[::1]:40001", ("::1", 40001)),
        ("[fd00::a:1]:1", ("fd00::a:1", 1)),
    ],
)
def test_a_place_is_read_and_written(text, place):
    assert read_place(text) == place
    assert write_place(*place) == text


def test_without_a_port_brackets_may_be_left_out():
    assert read_place("::1", 0) == read_place("[::1]", 0) == ("::1", 0)
    assert read_place("10.0.0.1", 5) == ("10.0.0.1", 5)


@pytest.mark.parametrize(
    "text",
    ["", "a", "::1", "::1:40001", "[::1]", "[::1]:x", "[]:1", "[a]:1", "a:70000", "[::1:40001"],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"is not of the form ADDRESS:PORT.*\[fd00::1\]:40001"):
        read_place(text)


def test_the_address_towards_loopback_is_loopback():
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert resolve("127.0.0.1", 9) == "127.0.0.1"
    with pytest.raises(OSError, match=r"not known|resolution"):
        resolve("no-such-host.invalid", 9)
