"""Compiled models of Keras 3 on the torch backend, as jobs."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from manyhands.adapters.keras_adam import KerasAdam
from manyhands.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.data.sized import SizedData

__all__ = ["KerasModule", "job", "load_weights"]

_OWN: Final = ("model", "optimizer", "loss", "objective", "metrics")
"""Fields of a job that the compiled model determines."""
_ACCURACIES: Final = frozenset(
    (
        *("accuracy", "acc", "Accuracy", "binary_accuracy", "BinaryAccuracy"),
        *("categorical_accuracy", "CategoricalAccuracy"),
        *("sparse_categorical_accuracy", "SparseCategoricalAccuracy"),
    )
)
_MEANS: Final = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
_LEFT_OUT: Final = {
    "clipnorm": "give clip= to the job, which clips the norm over all parameters",
    "clipvalue": "give clip= to the job, which clips the norm over all parameters",
    "global_clipnorm": "give clip= to the job",
    "use_ema": "leave it out",
    "loss_scale_factor": "leave it out",
    "gradient_accumulation_steps": "give micro_batch= to the job",
    "amsgrad": "leave it out",
}
"""Options of optimizers that have no translation, and what to do instead."""


def job(
    make_model: Callable[[], Any],
    *,
    data: SizedData,
    global_batch: int,
    validation: SizedData | None = None,
    **fields: Any,
) -> Job:
    """The job of a compiled Keras model.

    The compiled loss is computed by Keras. The compiled optimizer becomes the one of torch with the
    same formulas: SGD, Adam and AdamW. The metric "accuracy" becomes a metric of the job.

    Args:
        make_model: returns a new compiled model whose variables exist: it begins with an `Input`,
            or was built.
        data: samples (input, target), in the form in which `model.fit` takes them.
        global_batch: samples in one step of all workers together.
        validation: samples for the validation loss and the accuracy.
        fields: other fields of `mh.Job`, such as `epochs` and `seed`.

    Returns:
        The job.

    Raises:
        TypeError: a field is given that the compiled model determines.
        ValueError: the model is not compiled or not built, or is compiled with something that has
            no translation; the message names it.
        ModuleNotFoundError: Keras is not installed.
        RuntimeError: Keras has another backend.

    Example:
        At the top level of a script::

            def make_model():
                model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), …])
                model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
                return model

            job = mh.adapters.keras.job(make_model, data=digits, global_batch=64, epochs=2)
    """
    keras = _keras()
    given = [name for name in _OWN if name in fields]
    if given:
        raise TypeError(f"{given[0]} is what the Keras model was compiled with: leave it out")
    model = make_model()
    _check(keras, model)
    _translated(keras, model.optimizer, [nn.Parameter(torch.zeros(1))])
    return Job(
        model=lambda: KerasModule(make_model()),
        optimizer=lambda module: _translated(
            keras,
            module.keras_model.optimizer,  # type: ignore[union-attr]  # KerasModule's
            module.parameters(),
        ),
        loss=lambda outputs, targets: model.compute_loss(y=targets, y_pred=outputs),
        metrics=_metrics(model),
        data=data,
        validation=validation,
        global_batch=global_batch,
        **fields,
    )


def load_weights(run: Any, model: Any) -> Any:
    """Overwrite the variables of a Keras model by those of a finished run.

    Args:
        run: the run, as `mh.train` returned it or as `mh.Run(folder)` opens it.
        model: a model as the job's `make_model` returns it.

    Returns:
        The model, with the trained variables.

    Raises:
        FileNotFoundError: the run stored no model.
        ValueError: the run's variables are not those of this model.

    Example:
        After a run::

            model = mh.adapters.keras.load_weights(run, make_model())
            model.save("trained.keras")
    """
    state = run.state_dict()
    named = dict(_named(model))
    if {name: tuple(one.shape) for name, one in named.items()} != {
        name: tuple(tensor.shape) for name, tensor in state.items()
    }:
        raise ValueError(
            f"the run has {len(state)} variables and the model {len(named)}, or their shapes "
            "differ: give a model as the job's make_model returns it"
        )
    for name, variable in named.items():
        variable.assign(state[name])
    return model


class KerasModule(nn.Module):
    """A Keras model as a torch module with parameters of its own.

    Keras's layers keep references to their variables, so a strategy that replaces parameters would
    have no effect on them. This module calls the layers with its parameters in their place
    (`stateless_call`): every strategy that can train a module as a whole can train it.

    Args:
        keras_model: a model whose variables exist.

    Example:
        With `model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])`, the parameters
        of `KerasModule(model)` are `0_kernel` and `1_bias`: the number of a variable and its name.
    """

    keras_model: Any
    """The Keras model; torch does not see it, because its variables are not what is trained."""

    def __init__(self, keras_model: Any) -> None:
        super().__init__()
        object.__setattr__(self, "keras_model", keras_model)
        names = {id(variable): name for name, variable in _named(keras_model)}
        self._trained = [names[id(one)] for one in keras_model.trainable_variables]
        self._state = [names[id(one)] for one in keras_model.non_trainable_variables]
        for name, variable in _named(keras_model):
            value = variable.value.detach().clone()
            if name in self._trained:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs: Any) -> Any:
        """The model's outputs; in training mode its state is updated, as of batch norm.

        Raises:
            ValueError: the model adds losses of its own.
        """
        outputs, state, losses = self.keras_model.stateless_call(
            [getattr(self, name) for name in self._trained],
            [getattr(self, name) for name in self._state],
            *inputs,
            training=self.training,
            return_losses=True,
        )
        if losses:
            raise ValueError(
                "the Keras model adds losses of its own (a regularizer or add_loss), which the "
                "compiled loss does not have: use weight_decay of AdamW, or an objective"
            )
        if self.training:
            with torch.no_grad():
                for name, value in zip(self._state, state, strict=True):
                    getattr(self, name).copy_(value)
        return outputs


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether each prediction is right, as Keras's "accuracy" finds out: by the shapes.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 1])).tolist()
    [1.0, 0.0]
    """
    classes = outputs.shape[-1] if outputs.dim() > 1 else 1
    if classes == 1:
        return (outputs.flatten().gt(0.5) == targets.flatten().gt(0.5)).double()
    wanted = targets.argmax(-1) if targets.shape == outputs.shape else targets
    return (outputs.argmax(-1) == wanted.reshape(outputs.shape[:-1])).double()


def _keras() -> Any:
    """The module `keras`, with the torch backend."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        keras = import_module("keras")
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise ModuleNotFoundError(
            "Keras is not installed: pip install 'manyhands[keras]'"
        ) from error
    if keras.backend.backend() != "torch":
        raise RuntimeError(
            f"Keras has the backend {keras.backend.backend()!r}: set the environment variable "
            "KERAS_BACKEND=torch before it is imported"
        )
    return keras


def _check(keras: Any, model: Any) -> None:
    """Refuse a model that cannot be a job, by the name of what is in the way."""
    if not isinstance(model, keras.Model):
        raise ValueError(  # noqa: TRY004 - what a function returned
            f"make_model must return a keras.Model, got {type(model).__name__}"
        )
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise ValueError("the Keras model is not compiled: call model.compile(optimizer, loss)")
    if not model.built:
        raise ValueError(
            "the Keras model has no variables yet: begin it with keras.Input(shape), or call "
            "model.build(shape)"
        )
    if not isinstance(model.loss, str) and not callable(model.loss):
        raise ValueError(  # noqa: TRY004 - as all that a model is compiled with
            f"loss={model.loss!r} is not one loss for one output: compile the model with one, or "
            "use mh.Job with an objective"
        )
    reduction = getattr(model.loss, "reduction", _MEANS[0])
    if reduction not in _MEANS:
        raise ValueError(
            f"the loss has reduction={reduction!r}, and a job's loss is a mean over samples: use "
            f"{_MEANS[0]!r}"
        )
    if model.losses:
        raise ValueError(
            "the Keras model has regularizers, which are not translated: use weight_decay of "
            "AdamW, or mh.Job with an objective"
        )


def _metrics(model: Any) -> tuple[Any, ...]:
    """The compiled metrics as those of a job.

    Raises:
        ValueError: there is one that has no translation.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a function of the user's is not serialised
        compiled = model.get_compile_config() or {}
    found = []
    for metric in compiled.get("metrics") or ():
        name = metric.get("class_name") if isinstance(metric, dict) else metric
        if name not in _ACCURACIES:
            raise ValueError(
                f"the metric {name!r} has no translation: compile the model with "
                "metrics=['accuracy'], or without"
            )
        found.append(accuracy)
    return tuple(found[:1])


def _translated(keras: Any, optimizer: Any, parameters: Any) -> torch.optim.Optimizer:
    """The torch optimizer with the formulas of a Keras one.

    Raises:
        ValueError: there is none; the message names what is in the way.
    """
    name = type(optimizer).__name__
    # On the torch backend they are classes of their own, derived from the public ones.
    if (
        name not in ("SGD", "Adam", "AdamW")
        or not isinstance(optimizer, getattr(keras.optimizers, name))
        or not type(optimizer).__module__.startswith("keras.")
    ):
        raise ValueError(
            f"the optimizer {name} has no translation: compile the model with SGD, Adam "
            "or AdamW, or use mh.Job with an optimizer of torch"
        )
    config = optimizer.get_config()
    for option, instead in _LEFT_OUT.items():
        if config.get(option):
            raise ValueError(f"{name}({option}={config[option]!r}) has no translation: {instead}")
    rate = config["learning_rate"]
    if isinstance(rate, dict):
        raise ValueError(  # noqa: TRY004 - as all that a model is compiled with
            f"the learning-rate schedule {rate.get('class_name')} has no translation: compile the "
            "model with a number, and give lr_schedule= or lr_scheduler= to the job"
        )
    decay = config.get("weight_decay") or 0.0
    if getattr(optimizer, "_exclude_from_weight_decay", None) or getattr(
        optimizer, "_exclude_from_weight_decay_pattern", None
    ):
        raise ValueError("exclude_from_weight_decay has no translation: use mh.Job")
    if name == "SGD":
        if decay:
            raise ValueError(
                f"SGD(weight_decay={decay:g}) of Keras is not that of torch: use AdamW, or mh.Job"
            )
        momentum = float(config["momentum"])
        nesterov = bool(config["nesterov"]) and momentum > 0
        return torch.optim.SGD(parameters, float(rate), momentum=momentum, nesterov=nesterov)
    return KerasAdam(
        parameters,
        lr=float(rate),
        betas=(float(config["beta_1"]), float(config["beta_2"])),
        eps=float(config["epsilon"]),
        weight_decay=float(decay),
    )


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    """The variables by number and name. Paths are no names: Keras numbers layers per process."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    for number, variable in enumerate(variables):
        yield f"{number}_{variable.name}", variable
