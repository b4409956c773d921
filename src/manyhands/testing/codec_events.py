"""Events of runs with codecs: laws are told of vectors before encoding and after decoding."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from manyhands.protocols.compression.worker import CodedEndpoint
from manyhands.testing.laws.law import payload_values, values
from manyhands.virtual.worker.endpoint import VirtualEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.testing.laws.law import Life
    from manyhands.virtual.world import World


class Observing(Protocol):
    """The part of an observer that is needed here."""

    world: World
    lives: dict[str, Life]
    within: bool

    def tell(self, what: str, *words: object, **more: object) -> None:
        """Tell the laws of an event."""


@contextlib.contextmanager
def codec_events(observer: Observing) -> Iterator[None]:
    """Observe what is encoded and decoded: laws are told of vectors, not of their codes."""

    def posting(post: Callable[..., None]) -> Callable[..., None]:
        def posted(
            coded: Any, to: str, message: Any, payload: Any = None, into: Any = None
        ) -> None:
            if not coded._inner.is_dead:
                life = observer.lives[coded._inner.caller]
                observer.tell("posted", life, int(to[7:]), message, payload_values(payload))
                observer.within = True
            post(coded, to, message, payload, into)
            observer.within = False

        return posted

    def encoding(encode: Callable[..., Any]) -> Callable[..., Any]:
        def encoded(coded: Any, there: Any, to: str, payload: Any) -> Any:
            before = _residual(there)
            frame = encode(coded, there, to, payload)
            # What is posted to a server that is known to be lost is not sent.
            if not coded._inner.is_dead and coded._inner.reaches(to):
                life, server = observer.lives[coded._inner.caller], int(to[7:])
                owed = None
                if payload is not None and there.sent is not None:
                    owed = values(there.sent)
                elif payload is not None and there.feedback and there.coding.pushes.feeds_back:
                    owed = values(payload) + before - _residual(there)
                observer.tell("encoded", life, server, owed, empty=payload is None)
            return frame

        return encoded

    def receiving(receive: Callable[..., Any]) -> Callable[..., Any]:
        async def received(coded: Any, sender: str, timeout: float | None = None) -> Any:
            there, inner = coded._connection(sender), coded._inner
            said = await receive(coded, sender, timeout)
            if there is not None and not inner.is_dead:
                life, server = observer.lives[inner.caller], int(sender[7:])
                into = there.came
                kept = payload_values(into)
                beside = any(into is room for room in life.replication.beside)
                observer.tell("took", life, server, said, kept, beside=beside)
                if there.coding.answers is not None and into is not None and there.reference:
                    held = observer.world._servers[sender].holder.references.sent[inner.caller]
                    known = payload_values(held.get(there.reference))
                    observer.tell("decoded", life, server, values(there.answered), known)
            return said

        return received

    def losing(lose: Callable[..., None]) -> Callable[..., None]:
        def lost(inner: VirtualEndpoint, name: str) -> None:
            lose(inner, name)
            if not inner.is_dead and inner.caller in observer.lives:
                observer.tell("lost_server", observer.lives[inner.caller], int(name[7:]))

        return lost

    with (
        wrapped(VirtualEndpoint, "lose", losing),
        wrapped(CodedEndpoint, "post", posting),
        wrapped(CodedEndpoint, "_encode", encoding),
        wrapped(CodedEndpoint, "receive", receiving),
    ):
        yield


def connection(endpoint: VirtualEndpoint, server: str) -> object | None:
    """What an endpoint with codecs keeps for a server; None if there are none."""
    coded = getattr(endpoint.on_loss, "__self__", None)
    return coded._connection(server) if isinstance(coded, CodedEndpoint) else None


def _residual(there: Any) -> Any:
    """The residual of a connection with codecs; 0 before the first push."""
    residual = there.feedback[0].residual if there.feedback else None
    return 0.0 if residual is None else residual.numpy().copy()


@contextlib.contextmanager
def wrapped(owner: object, name: str, wrapper: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what `wrapper` makes of it, and undo it afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, wrapper(before))
    try:
        yield
    finally:
        setattr(owner, name, before)
