"""Per-record losses of transformers models, by their task (the `hf` extra).

    DPZeroTrainer(model, arguments, ...)                                      # takes them by default
    make_private_with_epsilon(model, losses_for(model), data, collate=collator, ...)

A batch is what `datasets` and transformers' collators give: the arguments of the forward, with `labels`. A record's
loss is the mean over its own labelled places (-100 marks the others), in float32, and 0 where it has none. It does not
depend on the other records' numbers of places, as transformers' own mean over a batch does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers.models.auto import modeling_auto as auto

from dpzero_theory import check
from dpzero_theory.optim.evaluation import Losses

MEASURES = ("cross-entropy", "error")
IGNORED = -100
_CLASSIFIERS = (
    auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
)
_TAGGERS = (auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
_CAUSAL = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,)
_SEQ2SEQ = (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,)

Batch = Mapping[str, Tensor]
Forward = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
"""Logits, the classes last, and the labels they are for."""
Measure = Callable[[Tensor, Tensor], Tensor]


def losses_for(model: Any, measure: str = "cross-entropy") -> Losses:
    """The losses of the model's task: classification, tagging of tokens, masked, causal or seq2seq language modelling.

    Args:
        model: of transformers, or wrapped by peft; its class says the task, and `problem_type` of its configuration
            what a classifier's labels are: one class, several, or a number.
        measure: `cross-entropy` (of several classes: their mean binary one; of a number: the squared error), or
            `error`, the metric itself: the share of a record's labelled places whose most likely class is wrong. That
            needs no derivative, but a smoothing lambda large enough to change answers, 0.1 to 0.3.

    Raises:
        ValueError: another measure, or a model whose task is none of these.
    """
    check.choice("measure", measure, MEASURES)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(bare).__name__, getattr(bare, "config", None)
    error = measure == "error"

    def known(mappings: tuple[Mapping[str, Any], ...]) -> bool:
        return any(name in mapping.values() for mapping in mappings)

    if known(_CLASSIFIERS):
        if getattr(config, "problem_type", None) == "multi_label_classification":
            return _joined(_same, _several_wrong if error else _several)
        if getattr(config, "num_labels", 2) == 1:
            if error:
                raise ValueError("measure must be 'cross-entropy' where the label is a number; got 'error'")
            return _joined(_same, _squared)
    single = _wrong if error else _cross_entropy
    if known(_SEQ2SEQ) and getattr(config, "is_encoder_decoder", False):
        return _joined(_decoded, single)
    if known(_CAUSAL):
        return _joined(_next_token, single)
    if known(_CLASSIFIERS + _TAGGERS):
        return _joined(_same, single)
    raise ValueError(
        "losses must be given for a model that is no classifier and no language model of transformers, as a function "
        f"(module, batch) -> one loss for each record; got {name}"
    )


def _joined(forward: Forward, measure: Measure) -> Losses:
    def losses(module: nn.Module, batch: Any) -> Tensor:
        logits, labels = forward(module, batch)
        return measure(logits.float(), labels)

    losses.__qualname__ = f"losses_for.{forward.__name__}.{measure.__name__}"  # what a resumed run is held to
    return losses


def _logits(module: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = module(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return found


def _same(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    logits = _logits(module, batch)
    return logits[:, -labels.shape[1] :] if labels.dim() == 2 and logits.dim() == 3 else logits, labels


def _next_token(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    logits, labels = _logits(module, batch), batch["labels"]
    virtual = logits.shape[1] - labels.shape[1]  # peft's; the last of them is before the first token
    if virtual:
        return logits[:, virtual - 1 : -1], labels
    return logits, functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # logits as they lie: a slice would be copied


def _decoded(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    shifted: Any = module.prepare_decoder_input_ids_from_labels
    inputs = {"decoder_input_ids": shifted(labels=labels), **batch} if "decoder_input_ids" not in batch else batch
    return _logits(module, inputs), labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    lost = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=IGNORED)
    return _over_places(lost, labels)


def _wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return _over_places((logits.argmax(-1) != labels).float(), labels)


def _over_places(values: Tensor, labels: Tensor) -> Tensor:
    places = (labels != IGNORED).float().flatten(1) if labels.dim() > 1 else (labels != IGNORED).float()[:, None]
    return (values.view_as(places) * places).sum(1) / places.sum(1).clamp(min=1)


def _several(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)


def _several_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return ((logits > 0) != (labels > 0.5)).float().mean(1)


def _squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.squeeze(-1) - labels.float()).square()
