"""The objective weighs labels as the models do; runs are stored for `from_pretrained`."""

import types
from functools import partial

import pytest
import torch

import manyhands as mh
from manyhands.adapters.transformers import collator, objective, save_pretrained


def test_labels_of_the_next_token_count():
    batch = {
        "input_ids": torch.ones(2, 4, dtype=torch.long),
        "labels": torch.tensor([[1, 2, -100, 3], [-100, 5, -100, -100]]),
    }

    def model(**_):
        return types.SimpleNamespace(loss=torch.tensor(0.5), logits=torch.zeros(2, 4, 9))

    for shifted, count in ((True, 3), (False, 4)):
        weighted = objective(model, batch, shifted=shifted)
        assert weighted.weight == count
        assert weighted.mean == 0.5


def test_a_batch_without_labels_is_refused():
    with pytest.raises(ValueError, match="the batch has no 'labels', only 'input_ids'"):
        objective(None, {"input_ids": torch.ones(1, 2)})


def test_a_collator_pads_and_labels():
    collate = collator(9, multiple_of=4)
    batch = collate(
        [
            {"input_ids": torch.tensor([1, 2, 3, 4, 5])},
            {"input_ids": [6, 7], "attention_mask": [1, 0]},
            {"input_ids": [8], "labels": [-100]},
        ]
    )
    assert batch["input_ids"].shape == (3, 8)
    assert batch["input_ids"][1].tolist() == [6, 7, 9, 9, 9, 9, 9, 9]
    assert batch["labels"][1].tolist() == [6, *[-100] * 7]
    assert batch["labels"][2].tolist() == [-100] * 8
    assert batch["attention_mask"].sum(1).tolist() == [5, 1, 1]


def test_a_collator_needs_a_padding_token():
    with pytest.raises(TypeError, match=r"has no padding token: set tokenizer.pad_token"):
        collator(types.SimpleNamespace(pad_token_id=None))
    assert collator(types.SimpleNamespace(pad_token_id=3))([{"input_ids": [1]}])


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def gpt2(transformers):
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=12,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def bert(transformers, kind, **options):
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        **options,
    )
    return getattr(transformers, kind)(config).eval()


def t5(transformers):
    config = transformers.T5Config(
        vocab_size=40,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config).eval()


TOKENS = torch.randint(1, 40, (5, 12), generator=torch.Generator().manual_seed(0))
LABELS = torch.where(torch.arange(12) < torch.tensor([[12], [1], [3], [2], [7]]), TOKENS, -100)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("kind", ["gpt2", "masked", "tokens", "t5", "classes", "several"])
def test_parts_add_up_to_the_whole(transformers, kind):
    torch.manual_seed(0)
    labels = LABELS
    if kind == "gpt2":
        model = gpt2(transformers).eval()
    elif kind == "t5":
        model = t5(transformers)
    elif kind == "classes":
        model, labels = bert(transformers, "BertForSequenceClassification"), torch.arange(5) % 2
    elif kind == "several":
        model = bert(
            transformers,
            "BertForSequenceClassification",
            problem_type="multi_label_classification",
        )
        labels = torch.rand(5, 2).round()
    else:
        names = {"masked": "BertForMaskedLM", "tokens": "BertForTokenClassification"}
        model = bert(transformers, names[kind], **({"num_labels": 40} if kind == "tokens" else {}))
    batch = {"input_ids": TOKENS, "labels": labels}
    with torch.no_grad():
        whole = model(**batch).loss
        parts = [
            objective(model, {name: one[part] for name, one in batch.items()})
            for part in (slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 5))
        ]
    total = sum(part.total for part in parts)
    weight = sum(part.weight for part in parts)
    assert torch.allclose(total / weight, whole, rtol=1e-6)
    if kind == "gpt2":
        assert weight == (LABELS[:, 1:] != -100).sum()
        assert parts[1].weight == 0  # one token has no next one


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_part_without_labels_has_gradients_of_zero(transformers):
    model = gpt2(transformers)
    batch = {"input_ids": TOKENS, "labels": torch.full_like(TOKENS, -100)}
    objective(model, batch).total.backward()
    assert all((one.grad == 0).all() for one in model.parameters() if one.grad is not None)


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_loss_that_is_not_known_is_refused_by_name(transformers):
    model = bert(transformers, "BertForPreTraining")
    with pytest.raises(TypeError, match="the loss of BertForPreTraining is a mean over is not"):
        objective(model, {"input_ids": TOKENS, "labels": LABELS})
    with pytest.raises(TypeError, match="shifted=True"):
        partial(objective)(model, {"input_ids": TOKENS, "labels": LABELS})


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_run_starts_from_and_is_stored_for_from_pretrained(transformers, tmp_path):
    torch.manual_seed(1)
    pretrained = gpt2(transformers)
    pretrained.save_pretrained(tmp_path / "pretrained")
    job = mh.Job(
        model=lambda: gpt2(transformers),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        objective=objective,
        collate_fn=collator(0),
        data=[{"input_ids": row[: 3 + number]} for number, row in enumerate(TOKENS)],
        global_batch=5,
        epochs=1,
        start=tmp_path / "pretrained",
    )
    run = mh.simulate(job, "synchronous()", workers=2, output=tmp_path / "run")
    # One step of one worker, in plain torch.
    batch = collator(0)([job.data[index] for index in range(5)])
    loss = pretrained(**batch).loss
    loss.backward()
    with torch.no_grad():
        for parameter in pretrained.parameters():
            parameter.sub_(0.1 * parameter.grad)
    save_pretrained(run, gpt2(transformers), tmp_path / "trained")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "trained")
    for name, tensor in pretrained.state_dict().items():
        assert torch.allclose(loaded.state_dict()[name], tensor, atol=1e-6), name
    directly = transformers.GPT2LMHeadModel.from_pretrained(
        None, config=pretrained.config, state_dict=run.state_dict()
    )
    assert torch.equal(directly.lm_head.weight, loaded.lm_head.weight)


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_config_must_name_its_class(transformers, tmp_path):
    model = gpt2(transformers)
    run = types.SimpleNamespace(state_dict=model.state_dict)
    with pytest.raises(TypeError, match="GPT2Config does not say of which class"):
        save_pretrained(run, model.config, tmp_path)
    model.config.architectures = ["GPT2LMHeadModel"]
    save_pretrained(run, model.config, tmp_path / "trained")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained")


SCRIPT = """
    import json, os, sys
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers
    import forked
    import manyhands as mh
    from manyhands.adapters.transformers import collator, objective

    workers, strategies = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    transformers.logging.set_verbosity_error()

    def shifted(logits, labels, **_):
        # As theirs, which computes in float32 whatever the model's type.
        wanted = labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted)

    def model():
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=40, n_positions=24, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="eager",
        ))
        made.loss_function = shifted
        return made

    tokens = torch.randint(1, 40, (40, 24), generator=torch.Generator().manual_seed(0))
    job = mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        objective=objective,
        # Some samples have one token, none of which is predicted.
        data=[{"input_ids": row[: 1 + number * 5 % 23]} for number, row in enumerate(tokens)],
        collate_fn=collator(0),
        global_batch=10,
        samples=34,
        clip=1.0,
    )

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        apart = {}
        for how in strategies:
            losses, values, state = forked.train(job, how, store, rank, size)
            if rank == 0:
                apart[how] = max((state[n] - alone[2][n]).abs().max().item() for n in state)
        return apart

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.slow
def test_workers_equal_one(fork, transformers):
    for how, apart in fork(SCRIPT, 3, ["allreduce()", "fully_sharded()"])[0].items():
        assert apart < 1e-9, how
