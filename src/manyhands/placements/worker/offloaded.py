"""Shards in host memory, updated by an optimizer thread while the device computes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from manyhands.engine.fake_tensors import is_fake
from manyhands.engine.tensors import own
from manyhands.parameters.module_units import separate_units
from manyhands.parameters.scheduled_step import weighted_step
from manyhands.placements.held import stepped
from manyhands.placements.model.local_optimizer import step_on_local_tensors
from manyhands.placements.worker.sharded import Sharded

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.placements.held import SteppedTensor
    from manyhands.transport.collectives import Group


class Offloaded(Sharded):
    """A sharded model with a thread that runs the optimizer, unit by unit.

    The next forward pass begins at once: each unit waits only for its own parameters, while later
    units are still being updated.
    """

    steps_apart = True

    def __init__(
        self, job: Job, group: Group, device: torch.device, spread: Callable[[nn.Module], None]
    ) -> None:
        super().__init__(job, group, device, spread)
        self._turns = self._in_turn()
        every = [parameter for turn in self._turns for parameter in turn.parameters]
        self._plain = step_on_local_tensors(self.optimizer, every)
        self._updater: threading.Thread | None = None
        self._failure: BaseException | None = None

    def _in_turn(self) -> list[_UnitUpdate]:
        """The units' parameters, in the order in which the forward pass needs them."""
        inner = [_UnitUpdate(list(unit.parameters()), unit) for unit in separate_units(self.model)]
        known = {id(parameter) for turn in inner for parameter in turn.parameters}
        rest = [parameter for parameter in self.model.parameters() if id(parameter) not in known]
        turns = [*([_UnitUpdate(rest, self.model)] if rest else []), *inner]
        for turn in turns:
            # Before the engine gathers this unit's parameters.
            turn.unit.register_forward_pre_hook(turn.wait, prepend=True)
        return turns

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """As in `Sharded`, after the last step has completed."""
        handle = self.model.register_forward_hook(lambda *_: self._join())
        try:
            return super().gradient(inputs, targets, weight, samples)
        finally:
            handle.remove()

    def consumed(self) -> list[torch.Tensor]:
        """The shards on the device, in place of the plain tensors that the optimizer has."""
        shards = {id(plain): laid for laid, plain in self._plain.items()}
        return [shards.get(id(one), one) for one in super().consumed()]

    def step(self, weight: float) -> None:
        """Start to update in the background; units wait for their own parameters."""
        given = {
            plain: None if laid.grad is None else own(laid.grad) if plain is not laid else laid.grad
            for laid, plain in self._plain.items()
        }
        self.model.zero_grad()
        for turn in self._turns:
            turn.ready.clear()
        if is_fake():
            # Fake tensors are active in one thread only.
            self._update(given, weight)
            return
        self._updater = threading.Thread(
            target=self._update, args=(given, weight), name="optimizer", daemon=True
        )
        self._updater.start()

    def _update(self, given: dict[nn.Parameter, torch.Tensor | None], weight: float) -> None:
        """Step unit by unit: an optimizer skips parameters without a gradient."""
        try:
            for turn in self._turns:
                mine = [self._plain[parameter] for parameter in turn.parameters]
                for parameter in mine:
                    # This was the last reference: memory is freed before the unit computes again.
                    parameter.grad = given.pop(parameter, None)
                weighted_step(self.optimizer, weight)
                for parameter in mine:
                    parameter.grad = None
                turn.ready.set()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
            for turn in self._turns:
                turn.ready.set()

    def _join(self) -> None:
        if self._updater is not None:
            self._updater.join()
            self._updater = None
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait for the thread that updates."""
        self._join()

    def outputs(self, inputs: Any) -> Any:
        """Outputs after the last step has completed."""
        self._join()
        return super().outputs(inputs)

    def stepped(self) -> list[SteppedTensor]:
        """The plain tensors that the thread steps."""
        self._join()
        keys = {id(laid): plain for laid, plain in self._plain.items()}
        return stepped(self.held(), keys)

    def state(self) -> State:
        """The state after the last step has completed."""
        self._join()
        return super().state()


class _UnitUpdate:
    """One unit's parameters, and whether they are up to date."""

    def __init__(self, parameters: list[nn.Parameter], unit: nn.Module) -> None:
        self.parameters = parameters
        self.unit = unit
        self.ready = threading.Event()
        self.ready.set()

    def wait(self, *_: object) -> None:
        """Wait until they are up to date."""
        self.ready.wait()
