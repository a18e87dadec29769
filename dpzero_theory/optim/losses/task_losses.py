"""Loss functions for the tasks of transformers models, with one loss for each record of a batch (the `hf` extra).

    make_private_with_epsilon(model, losses_for(model), data, collate=collator, ...)

`DPZeroTrainer` uses them by default. A batch holds the arguments of the model's forward, and `labels`; the label -100
marks tokens that do not count. A record's loss is the mean over its own labelled tokens, and not over all tokens of the
batch as in transformers.
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
"""Whether a model can compute logits at positions that differ between records (in transformers 5)."""
_SEQ2SEQ = (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,)

_Batch = Mapping[str, Tensor]
_Forward = Callable[[nn.Module, _Batch], tuple[Tensor, Tensor]]
"""A function (module, batch) -> (logits, labels). The classes are the last axis of the logits."""
_Measure = Callable[[Tensor, Tensor], Tensor]
"""A function (logits, labels) -> losses of shape (records,), one for each record."""


def losses_for(model: Any, measure: str = "cross-entropy") -> Losses:
    """Return the loss function for the task of a transformers model, with one loss for each record of a batch.

    The tasks are classification and regression of whole records, classification of tokens, and masked, causal and
    seq2seq language modelling, but not problem_type "multi_label_classification". A record's loss is the mean over its
    labelled tokens, those whose label is not -100, and 0 if it has none. With "cross-entropy" it is NaN if a label is
    no class of the model; the other measures count such a label as a wrong prediction.

    Args:
        model: a model of transformers, possibly wrapped by peft. Its class determines the task. A classifier with
            num_labels = 1, or with problem_type "regression", predicts numbers.
        measure: "cross-entropy", which means mean squared error if labels are numbers; "error", the share of labelled
            tokens whose most likely class is wrong; or "expected-error", the mean of 1 - p over labelled tokens, where
            p is the softmax probability of the label. "error" changes only with large changes of the weights, and needs
            a large smoothing lambda, 0.1 to 0.3; 1e-2 to 3e-2 is enough for "expected-error".

    Returns:
        A function (module, batch) -> float32 losses of shape (batch,). The batch must be a mapping with `labels`:
        integers of shape (batch,) for classification of records, and (batch, tokens) for tokens; numbers for
        regression, one for each output of the model. For causal models, labels[i, t] is the token at position t.

    Raises:
        ValueError: the measure is unknown, or another than "cross-entropy" for a regression; or the model has none of
            these tasks. The returned function raises ValueError for a batch without labels, or with labels of another
            shape or type than the task has.
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
    found: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model  # what peft wraps
    return found


def _joined(forward: _Forward, measure: _Measure) -> Losses:
    def losses(module: nn.Module, batch: Any) -> Tensor:
        logits, labels = forward(module, batch)
        return measure(logits.float(), _fitted(logits, labels, measure))

    # A run's file stores this name, and the run can only be resumed with losses of the same name.
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
    # Returns the labels in the form that `measure` takes: for `_squared` as they are, in the shape of the logits; for
    # the other measures as int64 classes, in the shape of the logits without the last axis. Labels of shape (batch,)
    # are taken for (batch, 1), and the reverse. Raises ValueError for another shape, and for classes that are no
    # integers.
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
    # Returns logits and labels of a model whose logits predict the label at their own position, or of a model with one
    # label for each record.
    labels = _labels(batch)
    return _logits(module, batch), labels


def _masked(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Returns logits and labels of a masked language model, if possible at the labelled positions alone
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
    # Returns logits of a causal language model, and for each the label of the next token, which they predict. If the
    # model allows it, logits are computed only where this label is not -100.
    labels = _labels(batch)
    if labels.dim() != 2:
        raise ValueError(
            f"labels must be of shape (records, tokens) for a causal language model; got {tuple(labels.shape)}"
        )
    # The labels are shifted instead of the logits, since a slice of the logits would be copied.
    labels = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    places = _needed(module, labels != IGNORED)
    if places is None:
        return _logits(module, batch), labels
    return _logits(module, {**batch, "logits_to_keep": places}), labels.gather(1, places)


@cache
def _can_leave_out(kind: Any) -> bool:
    return "logits_to_keep" in inspect.signature(kind.forward).parameters


def _needed(module: nn.Module, known: Tensor) -> Tensor | None:
    # Returns the positions at which logits are needed (`_places`), or None if the model must compute them everywhere.
    kind: Any = type(_bare(module))
    return _places(module, known) if _BY_RECORD and _can_leave_out(kind) else None


def _places(module: nn.Module, known: Tensor) -> Tensor | None:
    # Returns the positions at which a language model must compute logits, shape (records, most labels of a record): for
    # each record first the labelled ones, where `known`, shape (records, positions), is true, then some others. Returns
    # None, for all positions, if none can be left out, and on a GPU, where replayed CUDA graphs need fixed shapes. With
    # a large vocabulary, logits can take longer than all layers.
    if known.is_cuda:
        return None
    # With prompt tuning (peft), virtual tokens come before the record's own tokens and shift their positions.
    adapted: Any = module
    if _bare(module) is not module and getattr(adapted.active_peft_config, "is_prompt_learning", False):
        return None
    most = max(1, int(known.sum(1).max()))
    if most >= known.shape[1] - 1:
        return None
    return known.int().sort(dim=1, descending=True, stable=True).indices[:, :most]


def _decoded(module: nn.Module, batch: _Batch) -> tuple[Tensor, Tensor]:
    # Returns logits and labels of an encoder-decoder model. Its decoder gets the labels shifted by one position if the
    # batch has no `decoder_input_ids`.
    labels = _labels(batch)
    shifted: Any = module.prepare_decoder_input_ids_from_labels
    inputs = {"decoder_input_ids": shifted(labels=labels), **batch} if "decoder_input_ids" not in batch else batch
    return _logits(module, inputs), labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    # Returns mean cross-entropies; NaN for a record with a label that is neither -100 nor in [0, classes)
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[-1]))
    known = labels.masked_fill(wrong, IGNORED)
    lost = functional.cross_entropy(logits.flatten(0, -2), known.flatten(), reduction="none", ignore_index=IGNORED)
    return _over_places(lost, labels).masked_fill(wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong, math.nan)


def _wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return _over_places((logits.argmax(-1) != labels).float(), labels)


def _chance_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    # Returns means of 1 - p, where p is the softmax probability of the label, or 0 if the label is no class
    known = (labels >= 0) & (labels < logits.shape[-1])
    right = logits.softmax(-1).gather(-1, labels.where(known, 0)[..., None]).squeeze(-1)
    return _over_places(1 - right * known, labels)


def _over_places(values: Tensor, labels: Tensor) -> Tensor:
    # Returns each record's mean of `values` where its labels are not -100; 0 if all are. `values` and `labels` have
    # shape (batch,) or (batch, positions).
    places = (labels != IGNORED).float().flatten(1) if labels.dim() > 1 else (labels != IGNORED).float()[:, None]
    return (values.view_as(places) * places).sum(1) / places.sum(1).clamp(min=1)


def _squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - labels.float()).square().mean(1)


def preference_losses(beta: float = 0.1) -> Losses:
    """Return the loss function of direct preference optimisation (DPO, arXiv 2305.18290), one loss for each pair of
    answers.

    A record is a prompt with a chosen and a rejected answer. Its loss is log(1 + exp(beta (r - c))), where c is the
    log-probability of the chosen answer by the model minus that by a reference model, and r is this difference for the
    rejected answer.

    Args:
        beta: a number > 0. A larger one keeps the model closer to the reference model.

    Returns:
        A function (module, batch) -> losses of shape (pairs,). The batch is as TRL's `DataCollatorForPreference` makes
        it: `input_ids`, `attention_mask` and `completion_mask` have shape (2 pairs, tokens), with the chosen answers of
        all pairs before the rejected ones, each after its prompt. `completion_mask` is 1 at tokens of an answer, else
        0. `ref_chosen_logps` and `ref_rejected_logps`, of shape (pairs,), are the reference model's log-probabilities
        of the answers.

    Raises:
        ValueError: beta is not a positive number. The returned function raises ValueError for a batch without the
            reference model's log-probabilities, and for a model with virtual tokens (prompt tuning).
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
    # Returns the log-probability of each answer given its prompt, shape (answers,). Each row of input_ids, shape
    # (answers, tokens), is a prompt and its answer, whose tokens have 1 in completion_mask. Raises ValueError if the
    # logits have another shape, as with virtual tokens (prompt tuning of peft).
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
