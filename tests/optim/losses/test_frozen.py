"""Tests of running a model's frozen layers once, and training only its tail, the layers above them.

The tail's losses are those of the whole model, its weights are shared with the model, and unsuitable models are
refused.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from torch.utils.data import Dataset  # noqa: E402

from dpzero_theory.optim.losses.frozen import STATES, States, cached  # noqa: E402
from dpzero_theory.optim.losses.task_losses import losses_for  # noqa: E402
from dpzero_theory.optim.private import make_private_with_epsilon  # noqa: E402

SHAPE = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
LENGTH, RECORDS = 7, 12


def llama(name: str = "LlamaForCausalLM", **changes: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=30, intermediate_size=24, max_position_embeddings=32, num_key_value_heads=1, pad_token_id=1,
        **SHAPE, **changes,
    )  # fmt: skip
    return getattr(transformers, name)(config)


def opt() -> Any:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(vocab_size=30, ffn_dim=24, word_embed_proj_dim=8, max_position_embeddings=32, **SHAPE)
    )


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=3, n_head=2, n_positions=32)
    )


def roberta(name: str = "RobertaForMaskedLM") -> Any:
    return getattr(transformers, name)(
        transformers.RobertaConfig(vocab_size=30, intermediate_size=24, max_position_embeddings=40, **SHAPE)
    )


MODELS: dict[str, tuple[Any, str]] = {
    "llama": (llama, "model.norm"),
    "opt": (opt, "model.decoder.final_layer_norm"),
    "gpt2": (gpt2, "transformer.ln_f"),
    "roberta": (roberta, "lm_head.layer_norm"),
    "llama, tied": (lambda: llama(tie_word_embeddings=True), "model.norm"),
    "llama classifier": (lambda: llama("LlamaForSequenceClassification", num_labels=3), "score"),
    "roberta classifier": (lambda: roberta("RobertaForSequenceClassification"), "classifier"),
}


def model_of(name: str, trained: str) -> Any:
    """Returns a model in evaluation mode, frozen but for the weights whose names contain `trained`."""
    torch.manual_seed(5)
    model = MODELS[name][0]().eval()
    for part, weight in model.named_parameters():
        with torch.no_grad():
            weight.add_(0.3 * torch.randn_like(weight))  # Gains of 1 and biases of 0 would hide mistakes
        weight.requires_grad_(trained in part)
    return model


class Records(Dataset[Any]):
    """Token ids with padding on one `side`, labelled by one of `classes` classes, or at their last token by its id."""

    def __init__(self, side: str, classes: int = 0) -> None:
        drawn = torch.Generator().manual_seed(2)
        self.rows = []
        for index in range(RECORDS):
            real = 3 + index % (LENGTH - 2)
            ids, mask = torch.ones(LENGTH, dtype=torch.long), torch.zeros(LENGTH, dtype=torch.long)
            labels = torch.full((LENGTH,), -100)
            place = slice(LENGTH - real, LENGTH) if side == "left" else slice(0, real)
            ids[place] = torch.randint(4, 30, (real,), generator=drawn)
            mask[place] = 1
            labels[range(LENGTH)[place][-1]] = 4 + index % 3
            given = torch.tensor(index % classes) if classes else labels
            self.rows.append({"input_ids": ids, "attention_mask": mask, "labels": given})

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def whole(model: Any, records: Records, **options: Any) -> torch.Tensor:
    batch = torch.utils.data.default_collate(records.rows)
    with torch.no_grad():
        return torch.as_tensor(losses_for(model, **options)(model, batch))


def everything(states: States) -> Any:
    return states[torch.arange(len(states))]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trained", ["layers", "above"])
def test_the_tail_has_the_losses_of_the_model(name: str, side: str, trained: str) -> None:
    layer = {"gpt2": "h.2.", "roberta": "layer.2.", "roberta classifier": "layer.2."}.get(name, "layers.2.")
    model = model_of(name, layer if trained == "layers" else MODELS[name][1])
    records = Records(side, classes=2 if "classifier" in name else 0)
    tail, states = cached(model, records, micro_batch=5)
    assert all(not part.startswith(layer.replace("2", "1")) for part in dict(tail.named_parameters()))
    with torch.no_grad():
        found = losses_for(tail)(tail, everything(states))
    torch.testing.assert_close(found, whole(model, records), rtol=1e-5, atol=1e-6)
    for weight in model.parameters():  # The tail's weights are the model's own
        if weight.requires_grad:
            with torch.no_grad():
                weight.add_(torch.randn_like(weight))
    with torch.no_grad():
        moved = losses_for(tail)(tail, everything(states))
    assert float((torch.as_tensor(moved) - torch.as_tensor(found)).abs().max()) > 1e-3
    torch.testing.assert_close(moved, whole(model, records), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "opt", "gpt2", "roberta"])
def test_options_are_the_only_classes(name: str) -> None:
    model = model_of(name, MODELS[name][1])
    records, options = Records("right"), [5, 4, 6]
    batch = torch.utils.data.default_collate(records.rows)
    with torch.no_grad():
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
    place = (batch["labels"] != -100).int().argmax(1) - (0 if name == "roberta" else 1)
    scores = logits[torch.arange(RECORDS), place][:, options].log_softmax(-1)
    wanted = [-scores[i, options.index(4 + i % 3)] for i in range(RECORDS)]
    torch.testing.assert_close(whole(model, records, options=options), torch.stack(wanted))
    tail, states = cached(model, records)
    with torch.no_grad():
        found = losses_for(tail, options=options)(tail, everything(states))
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-5, atol=1e-6)
    assert "forward" not in vars(model.get_output_embeddings())


def four_dimensional(rows: Any) -> Any:
    """Returns a batch with four-dimensional attention masks, and the positions, which such masks do not tell."""
    batch = torch.utils.data.default_collate(rows)
    seen = batch["attention_mask"].bool()
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    sight = (causal & seen[:, None, :]) | torch.eye(LENGTH, dtype=torch.bool)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    return {**batch, "attention_mask": sight[:, None], "position_ids": positions}


@pytest.mark.parametrize("trained", ["model.norm", "layers.2."])
def test_a_private_run_on_the_tail_trains_the_model(trained: str, tmp_path: Path) -> None:
    model = model_of("llama", trained)
    tail, states = cached(model, Records("left"), collate=four_dimensional)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    losses = losses_for(tail, options=[4, 5, 6])
    # The first call of the losses looks for labels that are options, so it has operations of its own.
    losses(tail, states[:2])
    run = make_private_with_epsilon(
        tail, losses, states, target_epsilon=4, target_delta=1e-3, steps=3,
        expected_batch=6.0, clip=1.0, step_size=1e-2, smoothing=1e-2, relation="add-remove", sampling="poisson",
        isolation="exact", folder=tmp_path,
    )  # fmt: skip
    while run.releases_left:
        run.step()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert next(part.states for part in tail.modules() if hasattr(part, "states")) is None


def test_states_in_a_folder_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = model_of("opt", "layers.2."), Records("left")
    folder = tmp_path / "states"
    _, first, other = cached(model, records, Records("right"), folder=folder)
    assert len(list(folder.iterdir())) == 2
    seen: list[int] = []
    model.model.decoder.layers[0].register_forward_hook(lambda *_: seen.append(1))
    _, again = cached(model, records, folder=folder)
    assert len(seen) == 2  # for the two records that are compared, but not for the data set
    assert torch.equal(everything(again)[STATES], everything(first)[STATES])
    assert not torch.equal(everything(other)[STATES], everything(first)[STATES])
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.add_(1e-3)  # With other frozen weights the states are others, too
    cached(model, records, folder=folder)
    assert len(list(folder.iterdir())) == 3
    # A change of trained weights does not change the states of the frozen layers.
    model.model.decoder.layers[2].fc1.weight.data.add_(1e-3)
    cached(model, records, folder=folder)
    assert len(list(folder.iterdir())) == 3


def _last_and_first(part: Any) -> None:
    """Make the last layer of RoBERTa trainable, and the normalisation of its embeddings, which is below that layer."""
    if type(part).__name__ == "RobertaEmbeddings":
        part.LayerNorm.requires_grad_(True)
    if type(part).__name__ == "RobertaEncoder":
        part.layer[2].requires_grad_(True)


class Skipping(torch.nn.Module):
    """A model that cannot be split, since its output takes the first layer's states past the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        for part in (self.embedding, *self.layers[:2]):
            part.requires_grad_(False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](self.embedding(input_ids))
        found: torch.Tensor = self.layers[2](self.layers[1](first)) + first
        return found


def short() -> Records:
    found = Records("left")
    found.rows[7] = {name: value[1:] for name, value in found.rows[7].items()}
    return found


def norm() -> Any:
    return model_of("llama", "model.norm")


@pytest.mark.parametrize(
    ("said", "work"),
    [
        ("trained weight in its first", lambda: cached(model_of("llama", "norm"), Records("left"))),
        ("must have a trained weight", lambda: cached(model_of("llama", "nothing"), Records("left"))),
        ("frozen weights below its layer 3", lambda: cached(model_of("llama, tied", "embed_tokens"), Records("left"))),
        (
            "frozen weights below its layer 2",
            lambda: cached(
                model_of("roberta", "LayerNorm").requires_grad_(False).apply(_last_and_first), Records("left")
            ),
        ),
        ("nn.ModuleList", lambda: cached(torch.nn.Linear(2, 2), Records("left"))),
        ("nothing but hidden states", lambda: cached(Skipping(), Records("left"))),
        ("micro_batch must be", lambda: cached(norm(), Records("left"), micro_batch=0)),
        ("padded and cut to one length", lambda: cached(norm(), short(), micro_batch=1)),
        ("mappings from names", lambda: cached(norm(), [(1, 2), (3, 4)])),
        ("data must be given", lambda: cached(norm())),
        ("options must be.*two different", lambda: losses_for(llama(), options=[4, 4])),
        ("options must be.*<= 29", lambda: losses_for(llama(), options=[4, 30])),
        (
            "options must be left out",
            lambda: losses_for(roberta("RobertaForSequenceClassification"), options=[4, 5]),
        ),
    ],
)
def test_models_records_and_options_that_do_not_fit_are_refused(said: str, work: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=said):
        work()
