"""Break-even of codecs: what each saves and takes for a job's own gradients."""

from manyhands.lab.break_even.codecs import BreakEven, CodecFigures, NetworkFigures, break_even

__all__ = ["BreakEven", "CodecFigures", "NetworkFigures", "break_even"]
