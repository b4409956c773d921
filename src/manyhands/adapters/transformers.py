"""Models of Hugging Face transformers: objective, collator, and runs for `from_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from manyhands.objective import Weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["collator", "objective", "save_pretrained"]

IGNORED: Final = -100
"""The label of positions that do not count."""
_SHIFTED: Final = frozenset(("ForCausalLM", "ForConditionalGeneration"))
"""Losses that compare the output at a position with the label of the next one."""
_PER_LABEL: Final = frozenset(("ForMaskedLM", "ForTokenClassification"))
_PER_SAMPLE: Final = frozenset(
    f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio")
)


def objective(model: Any, batch: Mapping[str, Any], *, shifted: bool | None = None) -> Weighted:
    """The objective of a model that returns `.loss`: for `Job(objective=…)`.

    The loss is a mean over the labels that count, those that are not −100. Causal language models
    compare with the *next* token, so the first label of a sequence never counts.

    Args:
        model: the model, or what stands for it in a strategy.
        batch: the keyword arguments of the model, with `labels`.
        shifted: whether the loss compares with the next label; default: by the model's class. For
            a class that is not known use `functools.partial(objective, shifted=True)`.

    Returns:
        The sum of the losses, and the number of labels.

    Raises:
        TypeError: what the model's loss is a mean over is not known.
        ValueError: the batch has no `labels`.

    Example:
        >>> import torch, types
        >>> import manyhands as mh
        >>> def model(input_ids, labels):
        ...     return types.SimpleNamespace(loss=torch.tensor(0.5), logits=torch.zeros(1, 4, 9))
        >>> batch = {"input_ids": torch.ones(1, 4), "labels": torch.tensor([[1, 2, 3, -100]])}
        >>> mh.adapters.transformers.objective(model, batch, shifted=True).weight
        tensor(2)
    """
    labels = batch.get("labels")
    if labels is None:
        raise ValueError(
            f"the batch has no 'labels', only {', '.join(map(repr, batch))}: the model needs them "
            "to compute its loss. manyhands.adapters.transformers.collator adds them"
        )
    counted = _counted(model, labels, shifted)
    outputs = model(**batch)
    weight = counted.sum()
    if not weight:
        # Theirs is a mean over nothing, which is NaN, and so are its gradients.
        return Weighted(outputs.logits.sum() * 0, weight)
    return Weighted(outputs.loss * weight, weight)


def _counted(model: Any, labels: torch.Tensor, shifted: bool | None) -> torch.Tensor:
    """Which labels count, or a one for every sample."""
    if shifted is None:
        module = model.get_submodule("") if hasattr(model, "get_submodule") else model
        kind = getattr(module, "loss_type", None)
        name = type(module).__name__
        if kind in _PER_SAMPLE:
            if labels.is_floating_point():
                return torch.ones(len(labels), device=labels.device)
            return labels != IGNORED
        if kind in _PER_LABEL or getattr(module.config, "is_encoder_decoder", False):
            shifted = False
        elif kind in _SHIFTED or name.endswith("LMHeadModel"):
            shifted = True
        else:
            raise TypeError(
                f"what the loss of {name} is a mean over is not known: if it is over labels that "
                "are not -100, say whether it compares with the next label, as in "
                "functools.partial(objective, shifted=True); otherwise write an objective that "
                "returns mh.Weighted(total, weight)"
            )
    return (labels[..., 1:] if shifted else labels) != IGNORED


def collator(
    pad: Any, *, multiple_of: int = 1
) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, torch.Tensor]]:
    """A `collate_fn` for causal language models: pads, and adds mask and labels.

    Samples are dictionaries with `input_ids`, and maybe `attention_mask` and `labels`. Sequences
    are padded on the right to the longest of the batch; labels are the tokens where a sample has
    none, and −100 where it was padded.

    Args:
        pad: a tokenizer that has a padding token, or the number of that token.
        multiple_of: pad to a multiple of this length.

    Returns:
        The function for `Job(collate_fn=…)`.

    Raises:
        TypeError: the tokenizer has no padding token.

    Example:
        >>> import manyhands as mh
        >>> collate = mh.adapters.transformers.collator(0)
        >>> batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
        >>> batch["labels"].tolist(), batch["attention_mask"].tolist()
        ([[5, 6, 7], [8, -100, -100]], [[1, 1, 1], [1, 0, 0]])
    """
    token = pad if isinstance(pad, int) else getattr(pad, "pad_token_id", None)
    if token is None:
        raise TypeError(
            f"{type(pad).__name__} has no padding token: set tokenizer.pad_token = "
            "tokenizer.eos_token, or give its number"
        )
    fills = {"input_ids": int(token), "attention_mask": 0, "labels": IGNORED}

    def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        whole = [_complete(sample) for sample in samples]
        longest = max(len(sample["input_ids"]) for sample in whole)
        length = -(-longest // multiple_of) * multiple_of
        return {
            name: torch.stack([_padded(sample[name], length, fill) for sample in whole])
            for name, fill in fills.items()
        }

    return collate


def _complete(sample: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    tokens = torch.as_tensor(sample["input_ids"])
    mask = torch.as_tensor(sample.get("attention_mask", torch.ones_like(tokens)))
    labels = sample.get("labels")
    if labels is None:
        labels = torch.where(mask.bool(), tokens, IGNORED)
    return {"input_ids": tokens, "attention_mask": mask, "labels": torch.as_tensor(labels)}


def _padded(values: torch.Tensor, length: int, fill: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, length - len(values)), value=fill)


def save_pretrained(run: Any, model: Any, folder: Path | str, tokenizer: Any = None) -> Path:
    """Store a finished run for `from_pretrained`.

    Args:
        run: the run, as `mh.train` returned it or as `mh.Run(folder)` opens it.
        model: a model of the job's class, whose parameters are overwritten, or its config.
        folder: where to store it.
        tokenizer: is stored too, if it is given.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: the run stored no model.
        TypeError: the config does not say of which class the model is.

    Example:
        After a run of a job with `model=lambda: GPT2LMHeadModel(config)`::

            save_pretrained(run, GPT2LMHeadModel(config), "trained")
            model = GPT2LMHeadModel.from_pretrained("trained")
    """
    if not hasattr(model, "load_state_dict"):
        model = _of_config(model)
    model.load_state_dict(run.state_dict())
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return Path(folder)


def _of_config(config: Any) -> Any:
    try:
        import transformers  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "transformers is not installed: pip install 'manyhands[transformers]'"
        ) from error
    named: list[str] = getattr(config, "architectures", None) or []
    if len(named) != 1 or not hasattr(transformers, named[0]):
        raise TypeError(
            f"the {type(config).__name__} does not say of which class of transformers the model "
            f"is (architectures={named or None}): give a model in place of the config"
        )
    return getattr(transformers, named[0])(config)
