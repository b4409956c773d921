"""Models of Hugging Face's transformers, as their users train them: N workers equal one.

Built from configurations, so nothing is downloaded. Batches are dictionaries with padding and
labels of −100 in different numbers per sample, and the model computes its own loss.
"""

import pytest

pytest.importorskip("transformers", reason="the library transformers is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
    import json, os, sys
    os.environ["HF_HUB_OFFLINE"] = "1"
    from dataclasses import replace
    import torch
    import transformers
    import forked
    import manyhands as mh
    from manyhands.data import tinyshakespeare
    from manyhands.strategies import check_job, strategy

    workers, kind, cases, what = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    transformers.logging.set_verbosity_error()
    LENGTH = 24

    class Texts(torch.utils.data.Dataset):
        # Pieces of text of different lengths, padded with 0; characters count from 1.

        def __init__(self, split, samples):
            self.text, self.samples = tinyshakespeare(split, LENGTH), samples

        def __len__(self):
            return self.samples

        def __getitem__(self, index):
            words, _ = self.text[index * 7]
            words = words + 1
            length = 3 + index * 5 % (LENGTH - 3)
            mask = (torch.arange(LENGTH) < length).long()
            labels = words.clone()
            if kind == "bert":
                # Some characters are masked, and only these are predicted.
                hidden = torch.arange(LENGTH) % (2 + index % 5) == 1
                labels[~hidden] = -100
                words = torch.where(hidden, 0, words)
            labels[mask == 0] = -100
            if kind in ("pairs", "stages", "tied"):
                # A causal model with padding at the end needs no mask.
                return words * mask, torch.cat([labels[1:], torch.tensor([-100])])
            return {"input_ids": words * mask, "attention_mask": mask, "labels": labels}

    def shifted(logits, labels, **_):
        # As theirs, which computes in float32 whatever the model's type.
        wanted = labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted)

    class Logits(torch.nn.Module):
        # Tensors in, tensors out, as losses of outputs and targets need them.

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, words):
            return self.model(words).logits

    class Embedding(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.words, self.places = model.wte, model.wpe

        def forward(self, words):
            return self.words(words) + self.places(torch.arange(words.shape[1]))

    def stages(model):
        # The same modules as a sequence, which is how a model is cut into stages.
        inner = model.transformer
        return torch.nn.Sequential(Embedding(inner), *inner.h, inner.ln_f, model.lm_head)

    def next_words(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def model():
        common = dict(vocab_size=80, attn_implementation="eager")
        if kind in ("pairs", "stages", "tied"):
            common["attn_implementation"] = "sdpa"
            common["tie_word_embeddings"] = kind != "stages"
        if kind != "bert":
            config = transformers.GPT2Config(
                n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **common,
            )
            made = transformers.GPT2LMHeadModel(config)
            made.loss_function = shifted
            if kind == "gpt2":
                return made
            return Logits(made) if kind == "pairs" else stages(made)
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, **common,
        )
        return transformers.BertForMaskedLM(config)

    job = mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        objective=lambda model, batch: model(**batch).loss,
        data=Texts("train", 40),
        validation=Texts("test", 7),
        global_batch=10,
        samples=34,
        clip=1.0,
    )
    if kind in ("pairs", "stages", "tied"):
        job = replace(job, objective=None, loss=next_words, metrics=())

    def refused(store, rank, size):
        # The reasons of strategies that cannot train the model.
        words = []
        for how, options in cases:
            try:
                check_job(strategy(how), job, size)
                forked.train(job, how, store, rank, size)
            except (TypeError, ValueError) as error:
                words.append(str(error))
        return words

    def virtual(store, rank, size):
        # Protocols, on a virtual cluster: each number of workers against one.
        alone = forked.train(job, "single()", store, 0, 1)
        apart = []
        for how, options in cases:
            changed = {name: value for name, value in options.items() if name != "workers"}
            on = {"workers": options["workers"], "output": f"run-{len(apart)}"}
            run = mh.simulate(replace(job, **changed), how, **on)
            state = run.state_dict()
            apart.append([
                abs(run.metrics["loss"] - alone[1]["loss"]),
                max((state[name] - alone[2][name]).abs().max().item() for name in state),
            ])
        return apart

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        apart = []
        for how, options in cases:
            losses, values, state = forked.train(replace(job, **options), how, store, rank, size)
            if rank == 0:
                apart.append([
                    abs(values["loss"] - alone[1]["loss"]),
                    max((state[name] - alone[2][name]).abs().max().item() for name in state),
                ])
        return apart

    if __name__ == "__main__":
        forked.run({"work": work, "refused": refused, "virtual": virtual}[what], workers)
"""
WHOLE = ["allreduce()", "fully_sharded()", "zero(stage=2)", "zero(stage=1)"]
IN_PARTS = {"micro_batch": 2}


def check_equal(found, cases):
    for (value, parameters), case in zip(found, cases, strict=True):
        assert value <= 1e-9, case
        assert parameters <= 1e-9, case


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_workers_equal_one(fork, kind, workers):
    cases = [(how, {}) for how in WHOLE]
    cases += [(how, IN_PARTS) for how in WHOLE] if workers == 2 else []
    check_equal(fork(SCRIPT, workers, kind, cases, "work")[0], cases)


DIVIDED = (
    'tensor(ways=2, plan=["bert.encoder.layer.?.intermediate.dense column", '
    '"bert.encoder.layer.?.output.dense row"])'
)


@pytest.mark.parametrize("workers", [2, 4])
def test_layers_are_divided_by_name(fork, workers):
    # By itself it finds none: their forwards cannot be traced.
    cases = [(DIVIDED, {}), (DIVIDED, IN_PARTS)]
    check_equal(fork(SCRIPT, workers, "bert", cases, "work")[0], cases)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_sequence_of_blocks_is_divided(fork, workers):
    cases = [("pipeline(microbatches=2)", {})]
    if workers % 2 == 0:
        cases += [("context(ways=2)", {}), ("context(ways=2)", IN_PARTS)]
    check_equal(fork(SCRIPT, workers, "stages", cases, "work")[0], cases)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_synchronous_workers_equal_one(fork, kind):
    cases = [("synchronous()", {"workers": number}) for number in (1, 2, 3, 4)]
    cases += [("synchronous()", {"workers": 2} | IN_PARTS)]
    check_equal(fork(SCRIPT, 1, kind, cases, "virtual")[0], cases)


WANTED = "give loss=loss(outputs, targets) and pairs (input, target), or use allreduce() or"
PIPELINE = (
    "pipeline() computes the loss from the outputs of the last stage, and an objective calls the "
    f"whole model: {WANTED} fully_sharded()"
)
CONTEXT = (
    "context() divides inputs and targets along the sequence, and an objective gets batches of "
    f"any form: {WANTED} fully_sharded()"
)
UNTRACED = "BertSelfAttention cannot be traced: Proxy object cannot be iterated"
NAMES = 'Use fully_sharded(), or name layers: plan=["*.up column", "*.down row"]'
REASONS = {
    "gpt2": {
        "tensor(ways=2)": (
            f"tensor() found no layers to split in GPT2LMHeadModel: it has no linear layer. {NAMES}"
        ),
        'tensor(ways=2, plan=["*.c_fc column", "*.mlp.c_proj row"])': (
            "transformer.h.0.mlp.c_fc is a Conv1D: a plan splits linear layers and embeddings"
        ),
        "context(ways=2)": CONTEXT,
        "pipeline()": PIPELINE,
    },
    "bert": {
        "tensor(ways=2)": (
            "tensor() found no layers to split in BertForMaskedLM: "
            "cls.predictions.transform.dense: it cannot be computed on a part of its inputs: "
            "Tensor on device meta is not on the expected device cpu!; "
            f"bert.encoder.layer.0.attention.self.query: {UNTRACED}; "
            f"bert.encoder.layer.0.attention.self.key: {UNTRACED}; "
            f"bert.encoder.layer.0.attention.self.value: {UNTRACED}. {NAMES}"
        ),
        "context(ways=2)": CONTEXT,
        "pipeline()": PIPELINE,
    },
    "pairs": {
        "context(ways=2)": (
            "Logits cannot compute a part of a sequence: shape '[-1, 8, 32]' is invalid for input "
            "of size 128. From the first repeated module on, the length must be read from what "
            "that module returns, not from the inputs of the model. Use fully_sharded(), or a "
            "sequence of the model's blocks (nn.Sequential)"
        ),
        "pipeline()": (
            "Logits can be split into at most 1 stage (model), got 2: use at most 1 stage"
        ),
    },
    "tied": {
        "pipeline()": (
            "Sequential can be split into at most 1 stage (0…4), got 2 (0.words.weight is used by "
            "0 and by 4, which stay together): use at most 1 stage"
        ),
    },
}


@pytest.mark.parametrize("kind", list(REASONS))
def test_says_why_a_model_cannot_be_divided(fork, kind):
    cases = [(how, {}) for how in REASONS[kind]]
    for words in fork(SCRIPT, 2, kind, cases, "refused"):
        assert words == list(REASONS[kind].values())
