"""Every codec has the name of its text in Python, too."""

import pytest

from manyhands import codecs


@pytest.mark.parametrize("kind", codecs.ALL, ids=lambda kind: kind.name)
def test_a_codec_is_called_in_python_as_in_text(kind) -> None:
    assert getattr(codecs, kind.name) is kind
    assert kind.name in codecs.__all__
