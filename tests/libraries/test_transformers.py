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

    workers, kind, strategies, options = map(json.loads, sys.argv[1:])
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
            return {"input_ids": words * mask, "attention_mask": mask, "labels": labels}

    def shifted(logits, labels, **_):
        # As theirs, which computes in float32 whatever the model's type.
        wanted = labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted)

    def model():
        common = dict(vocab_size=80, attn_implementation="eager")
        if kind == "gpt2":
            config = transformers.GPT2Config(
                n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **common,
            )
            made = transformers.GPT2LMHeadModel(config)
            made.loss_function = shifted
            return made
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

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        apart = {}
        for how in strategies:
            losses, values, state = forked.train(replace(job, **options), how, store, rank, size)
            if rank == 0:
                apart[how] = [
                    abs(values["loss"] - alone[1]["loss"]),
                    max((state[name] - alone[2][name]).abs().max().item() for name in state),
                ]
        return apart

    if __name__ == "__main__":
        forked.run(work, workers)
"""
STRATEGIES = ["allreduce()", "fully_sharded()", "zero(stage=2)", "zero(stage=1)"]


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(1, {}), (2, {}), (2, {"micro_batch": 2}), (3, {}), (4, {})],
    ids=["1", "2", "2, micro-batches", "3", "4"],
)
def test_workers_equal_one(fork, kind, workers, options):
    for how, (value, parameters) in fork(SCRIPT, workers, kind, STRATEGIES, options)[0].items():
        assert value < 1e-9, how
        assert parameters < 1e-9, how


DIVIDED = (
    'tensor(ways=2, plan=["bert.encoder.layer.?.intermediate.dense column", '
    '"bert.encoder.layer.?.output.dense row"])'
)


def test_layers_are_divided_by_name(fork):
    # By itself it finds none: their forwards cannot be traced, and GPT-2's layers are no nn.Linear.
    for value, parameters in fork(SCRIPT, 2, "bert", [DIVIDED], {})[0].values():
        assert value < 1e-9
        assert parameters < 1e-9
