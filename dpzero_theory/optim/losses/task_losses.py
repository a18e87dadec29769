"""Losses of transformers models by their task, one number for each record of a batch (the `hf` extra).

    DPZeroTrainer(model, arguments, ...)                                      # takes them by default
    make_private_with_epsilon(model, losses_for(model), data, collate=collator, ...)

A batch is what `datasets` and transformers' collators give: the arguments of the model's forward, and `labels`. A
record's loss is the mean over its own labelled tokens, in float32, and 0 if it has none; the label -100 marks tokens
that are not to be predicted. The loss does not depend on how many tokens other records have, as transformers' own mean
over a batch does. A record with a label that is none of the model's classes has the cross-entropy NaN, which a run
counts as 0; for the measures `error` and `expected-error` its prediction there is wrong. The module and the batch are
read, and nothing is written.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import modeling_utils
from transformers.models.auto import modeling_auto as auto

from dpzero_theory import check
from dpzero_theory.optim.engines.texts import IGNORED
from dpzero_theory.optim.losses.evaluation import Losses

_CLASSIFIERS = (
    auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
)
_TAGGERS = (auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,)
_MASKED = (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,)
_CAUSAL = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,)
_BY_RECORD = hasattr(modeling_utils, "slice_logits_to_keep")
"""Whether a model can compute logits at positions that differ from record to record (transformers 5)."""
_SEQ2SEQ = (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,)

_Batch = Mapping[str, Tensor]
_Forward = Callable[[nn.Module, _Batch], tuple[Tensor, Tensor]]
"""A function (module, batch) -> the logits, with the classes along the last axis, and their labels."""
_Measure = Callable[[Tensor, Tensor], Tensor]
"""A function (logits, labels) -> one loss for each record."""


def losses_for(model: Any, measure: str = "cross-entropy") -> Losses:
    """Return the loss function of the model's task, which gives one loss for each record of a batch.

    The tasks are classification, regression, tagging of tokens, and masked, causal or seq2seq language modelling, but
    not classification with problem_type "multi_label_classification". A record's loss is the mean over its labelled
    tokens, whose label is not -100, and 0 if it has none; in classification a record has a single label.

    Args:
        model: a model of transformers, or one that peft has wrapped. Its class says which task it has; a classifier
            with num_labels = 1, or with the `problem_type` regression, predicts numbers.
        measure: "cross-entropy", which stands for the mean squared error if a label is a number. Or "error", the metric
            itself: the share of a record's labelled tokens whose most likely class is wrong. A zeroth-order method
            needs no derivative of it, but a smoothing lambda that is large enough to change answers, 0.1 to 0.3. Or
            "expected-error", the mean over the labelled tokens of 1 - p, where p is the softmax probability of the
            label's class: it moves with every change of the weights, so that a smaller lambda (1e-2 to 3e-2) will do.

    Returns:
        A function (module, batch) -> float32 losses of shape (batch,). The batch must be a mapping with `labels`:
        integers of shape (batch,) in classification and (batch, tokens) for tokens (which a causal model predicts from
        those before them: labels are shifted here); in regression numbers, one for each output of the model.

    Raises:
        ValueError: an unknown measure, another than "cross-entropy" where labels are numbers, or a model whose task is
            none of these. The function that is returned raises it for a batch without labels, or labels of another
            shape or type than the model's task has.
    """
    measures = {"cross-entropy": _cross_entropy, "error": _wrong, "expected-error": _chance_wrong}
    single = measures[check.choice("measure", measure, tuple(measures))]
    bare = _bare(model)
    name, config = type(bare).__name__, getattr(bare, "config", None)

    def known(mappings: tuple[Mapping[str, Any], ...]) -> bool:
        return any(name in mapping.values() for mapping in mappings)

    kind = getattr(config, "problem_type", None)
    if known(_CLASSIFIERS) and kind == "multi_label_classification":
        raise ValueError("losses must be given for a classifier of several classes at once; got problem_type " + kind)
    if known(_CLASSIFIERS) and (kind == "regression" or (kind is None and getattr(config, "num_labels", 2) == 1)):
        if measure != "cross-entropy":
            raise ValueError(f"measure must be 'cross-entropy' where the label is a number; got {measure!r}")
        return _joined(_same, _squared)
    if known(_SEQ2SEQ) and getattr(config, "is_encoder_decoder", False):
        return _joined(_decoded, single)
    if known(_CAUSAL):
        return _joined(_next_token, single)
    if known(_MASKED):
        return _joined(_masked, single)
    if known(_CLASSIFIERS) or known(_TAGGERS):
        return _joined(_same, single)
    raise ValueError(
        "losses must be given for a model that is no classifier and no language model of transformers, as a function "
        f"(module, batch) -> one loss for each record; got {name}"
    )


def _bare(model: Any) -> nn.Module:
    found: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model  # inside peft's adapter
    return found


def _joined(forward: _Forward, measure: _Measure) -> Losses:
    def losses(module: nn.Module, batch: Any) -> Tensor:
        logits, labels = forward(module, batch)
        return measure(logits.float(), _fitted(logits, labels, measure))

    # A run's file keeps the name of its losses, and a run with losses of another name cannot be resumed from it.
    losses.__qualname__ = f"losses_for.{forward.__name__}.{measure.__name__}"
    return losses


def _labels(batch: _Batch) -> Tensor:
    if not isinstance(batch, Mapping):
        raise ValueError(f"batches must be mappings with labels for these losses; got {check.shown(type(batch))}")
    labels = batch.get("labels")
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"batches must hold labels, as a tensor, for these losses; got {', '.join(map(str, batch))}: use a collator"
            " that keeps or makes them (causal: DataCollatorForLanguageModeling(tokenizer, mlm=False)), or give losses"
        )
    return labels


def _fitted(logits: Tensor, labels: Tensor, measure: _Measure) -> Tensor:
    # Return the labels of a batch in the form that `measure` takes. For `_squared`, which compares numbers, these are
    # the labels as they are, in the shape of the logits. For the other measures they are classes, as int64, in the
    # shape of the logits without the last axis. Labels may have the shape (batch,) for (batch, 1), and the reverse.
    # Raises ValueError for another shape, and for classes that are no integers.
    shape = tuple(logits.shape)
    wanted = shape if measure is _squared else shape[:-1]
    given = labels.reshape(wanted) if {labels.shape, wanted} == {shape[:1], (*shape[:1], 1)} else labels
    if tuple(given.shape) != wanted:
        raise ValueError(
            f"labels must be of shape {wanted} for a model that gives {shape}; got {tuple(labels.shape)}: the collator"
            " and the model must be of one task (numbers: problem_type='regression'; words of several tokens: word_ids;"
            " adapters with virtual tokens are not supported)"
        )
    if measure is _squared:
        return given
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers, numbers of classes; got {labels.dtype} (a number to predict: num_labels=1)"
        )
    return given.long()


def _logits(module: nn.Module, batch: _Batch) -> Tensor:
    output = module(**{name: value for name, value in batch.items() if name != "labels"})
    found: Tensor | None = getattr(output, "logits", None)
    if found is None:
        raise ValueError(
            f"the model must return an output with logits for these losses; got {type(output).__name__}: leave"
            " return_dict as it is, or give losses"
        )
    return found


def _same(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Return the logits and labels of a model whose logits at a position are for the label at the same position, or of
    # one with a single label for each record.
    labels = _labels(batch)
    return _logits(module, batch), labels


def _masked(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # If possible the model computes logits at the labelled positions alone
    labels, outputs = _labels(batch), _bare(module).get_output_embeddings()  # type: ignore[operator]
    places = _places(module, labels != IGNORED) if labels.dim() == 2 and isinstance(outputs, nn.Linear) else None
    if places is None:
        return _logits(module, batch), labels

    def fewer(part: nn.Module, given: tuple[Tensor]) -> Tensor:
        return given[0].gather(1, places[..., None].expand(-1, -1, given[0].shape[-1]))

    hook = outputs.register_forward_pre_hook(fewer)
    try:
        return _logits(module, batch), labels.gather(1, places)
    finally:
        hook.remove()


def _next_token(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Each token's logits are for the next token, whose label is returned for it. If possible the model computes logits
    # only where that label counts.
    labels = _labels(batch)
    if labels.dim() != 2:
        raise ValueError(
            f"labels must be of shape (records, tokens) for a causal language model; got {tuple(labels.shape)}"
        )
    # The labels are moved by one place, and not the logits, since a slice of the logits would be copied.
    labels = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    places = _needed(module, labels != IGNORED)
    if places is None:
        return _logits(module, batch), labels
    return _logits(module, {**batch, "logits_to_keep": places}), labels.gather(1, places)


@cache
def _can_leave_out(kind: Any) -> bool:
    return "logits_to_keep" in inspect.signature(kind.forward).parameters


def _needed(module: nn.Module, known: Tensor) -> Tensor | None:
    # As `_places`, for a causal language model, and None also if the model can leave out no position.
    kind: Any = type(_bare(module))
    return _places(module, known) if _BY_RECORD and _can_leave_out(kind) else None


def _places(module: nn.Module, known: Tensor) -> Tensor | None:
    # The positions at which a language model must compute logits, shape (records, most labels of a record): for each
    # record those with a label, where `known`, shape (records, positions), is true, then some without. None, if no
    # position can be left out. It saves time, as the logits of a large vocabulary can take longer than all layers.
    # How many positions there are depends on the batch, and a step that a GPU replays has fixed shapes.
    if known.is_cuda:
        return None
    # Virtual tokens of a prompt that is learnt (peft) come before the record's own, whose positions they move.
    adapted: Any = module
    if _bare(module) is not module and getattr(adapted.active_peft_config, "is_prompt_learning", False):
        return None
    most = max(1, int(known.sum(1).max()))
    if most >= known.shape[1] - 1:
        return None
    return known.int().sort(dim=1, descending=True, stable=True).indices[:, :most]


def _decoded(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Return the logits and labels of an encoder-decoder model, whose decoder is given the labels moved by one place if
    # the batch has no `decoder_input_ids`.
    labels = _labels(batch)
    shifted: Any = module.prepare_decoder_input_ids_from_labels
    inputs = {"decoder_input_ids": shifted(labels=labels), **batch} if "decoder_input_ids" not in batch else batch
    return _logits(module, inputs), labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    # NaN for a record with a label that is neither -100 nor in [0, classes)
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[-1]))
    known = labels.masked_fill(wrong, IGNORED)
    lost = functional.cross_entropy(logits.flatten(0, -2), known.flatten(), reduction="none", ignore_index=IGNORED)
    return _over_places(lost, labels).masked_fill(wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong, math.nan)


def _wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return _over_places((logits.argmax(-1) != labels).float(), labels)


def _chance_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    # The mean of 1 - p, where p is the softmax probability of the label's class, or 0 if there is no such class
    known = (labels >= 0) & (labels < logits.shape[-1])
    right = logits.softmax(-1).gather(-1, labels.where(known, 0)[..., None]).squeeze(-1)
    return _over_places(1 - right * known, labels)


def _over_places(values: Tensor, labels: Tensor) -> Tensor:
    # Each record's mean over its labels that are not -100; 0 if all are -100. Labels have the shape (batch,) or (batch,
    # positions), and there is a value for each.
    places = (labels != IGNORED).float().flatten(1) if labels.dim() > 1 else (labels != IGNORED).float()[:, None]
    return (values.view_as(places) * places).sum(1) / places.sum(1).clamp(min=1)


def _squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - labels.float()).square().mean(1)


def preference_losses(beta: float = 0.1) -> Losses:
    """Return the losses of direct preference optimisation (arXiv 2305.18290), one for each pair of answers.

    A record is a prompt with a chosen and a rejected answer. Its loss is log(1 + e^(beta (r - c))), where c is the
    model's log-probability of the chosen answer minus the reference model's, and r is the same for the rejected answer.

    A batch is what TRL's `DataCollatorForPreference` gives: input_ids, attention_mask and completion_mask of shape
    (2 pairs, tokens), first all chosen answers after their prompts, then all rejected answers. completion_mask is 1 for
    the tokens of an answer and 0 for the others. ref_chosen_logps and ref_rejected_logps, of shape (pairs,), are the
    reference model's log-probabilities of the answers.

    Args:
        beta: a number > 0; the larger it is, the closer the model stays to the reference model.

    Returns:
        A function (module, batch) -> losses of shape (pairs,).

    Raises:
        ValueError: beta is no positive number. The function that is returned raises it for a batch without the
            reference model's log-probabilities, and for an adapter with virtual tokens.
    """
    beta = check.real("beta", beta, above=0)

    def losses(module: nn.Module, batch: Any) -> Tensor:
        if "ref_chosen_logps" not in batch or "ref_rejected_logps" not in batch:
            raise ValueError(
                "ref_chosen_logps and ref_rejected_logps must be in a batch; compute them once for all pairs"
            )
        found = _log_probabilities(module, batch).float()
        chosen, rejected = (found - torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]])).chunk(2)
        return functional.softplus(-beta * (chosen - rejected))

    losses.__qualname__ = f"preference_losses.{beta!r}"
    return losses


def _log_probabilities(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    # The log-probability of each answer given its prompt, shape (answers,). Each row of input_ids, shape (answers,
    # tokens), is a prompt and its answer, whose tokens completion_mask marks by 1. Raises ValueError if the model gives
    # logits of another shape, as it does with an adapter that has virtual tokens (peft's prompt tuning).
    ids = batch["input_ids"]
    following, answered = (functional.pad(batch[name][:, 1:], (0, 1)) for name in ("input_ids", "completion_mask"))
    places, fewer = _needed(module, answered != 0), {}
    if places is not None:
        following, answered, fewer = following.gather(1, places), answered.gather(1, places), {"logits_to_keep": places}
    logits = module(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False, **fewer).logits.float()
    if logits.shape[:2] != following.shape:
        raise ValueError(f"the model must give logits of shape {tuple(following.shape)}; got {tuple(logits.shape[:2])}")
    each = logits.gather(2, following[..., None])[..., 0] - logits.logsumexp(2)
    found: Tensor = (each * answered).sum(1)
    return found
