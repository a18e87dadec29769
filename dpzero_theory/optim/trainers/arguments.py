"""The training arguments (fields of `transformers.TrainingArguments`) that a private run uses.

Any other field must have its default value; otherwise ValueError is raised. The configurations of TRL have further
fields, and some defaults that a private run replaces (`_SET_BY_A_RUN`).
"""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import TrainingArguments


def _by_field(table: Mapping[str, str]) -> dict[str, str]:
    # Returns the mapping from each field to its text, for a table from a text to fields separated by spaces.
    return {name: about for about, names in table.items() for name in names.split()}


HONOURED = _by_field(
    {
        "what is logged": """
            logging_strategy logging_steps logging_first_step log_level log_level_replica log_on_each_node disable_tqdm
            report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id""",
        "evaluation": """
            eval_strategy eval_steps eval_delay eval_on_start per_device_eval_batch_size prediction_loss_only
            eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
            label_names dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
            dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order""",
        "what is saved": """
            output_dir save_strategy save_steps save_total_limit save_only_model save_on_each_node
            load_best_model_at_end metric_for_best_model greater_is_better push_to_hub hub_token hub_private_repo
            hub_model_id hub_strategy hub_always_push hub_revision resume_from_checkpoint
            restore_callback_states_from_checkpoint""",
        "the process": """
            seed full_determinism use_cpu tf32 use_cache remove_unused_columns ddp_backend ddp_timeout local_rank
            do_train do_eval do_predict""",
    }
)
"""The fields that a private run uses, each with its subject. Fields about loading data affect evaluation sets only,
since training records are read as the batches are drawn."""
INSTEAD = _by_field(
    {
        "give step_size in private": """
            learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args adam_beta1 adam_beta2
            adam_epsilon weight_decay""",
        "give steps, sampling, expected_batch and micro_batch in private": """
            num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps auto_find_batch_size""",
        "give clip in private: each record's difference is clipped": "max_grad_norm",
        "load the model in the type it is to have": "bf16 fp16 bf16_full_eval fp16_full_eval",
        "compile or patch the model before it is given": "torch_compile use_liger_kernel",
        "give losses, one for each record": "label_smoothing_factor neftune_noise_alpha loss_type loss_weights",
        "it depends on the secret sizes of the batches": "include_num_input_tokens_seen skip_memory_metrics",
        "shard with torch's fully_shard and use make_private_with_epsilon": "fsdp fsdp_config deepspeed",
        "a record must have rows of its own: leave it off, rows are padded": "packing padding_free eval_packing",
        "the reference model is the model at the start": "sync_ref_model",
        "make the trainer with it": "precompute_ref_log_probs precompute_ref_batch_size",
    }
)
"""Fields that must have their defaults, each with what to do instead. Fields that are neither here nor in `HONOURED`
or `_HONOURED_IN` concern training by gradients, or are of later versions, and must have their defaults too."""
_OF_BOTH = (
    "model_init_kwargs dataset_num_proc max_length truncation_mode pad_to_multiple_of pad_token trust_remote_code"
)
_HONOURED_IN = {
    "SFTConfig": f"""{_OF_BOTH} chat_template_path dataset_text_field dataset_kwargs eos_token shuffle_dataset
        completion_only_loss assistant_only_loss""".split(),
    "DPOConfig": f"{_OF_BOTH} disable_dropout beta".split(),
}
"""Further fields that a private run uses, by the name of TRL's configuration class."""
_PLAIN = {"bf16": False, "activation_checkpointing": False, "gradient_checkpointing": False}
_SET_BY_A_RUN: dict[str, dict[str, Any]] = {
    "_BaseConfig": _PLAIN,  # The base class of TRL's configurations
    # Each pair is evaluated alone, so that its reference log-probabilities do not depend on the lengths of others.
    "DPOConfig": {**_PLAIN, "precompute_ref_log_probs": True, "precompute_ref_batch_size": 1},
}
"""The values that a private run gives to fields of TRL's configurations, by the name of the configuration class."""


def for_a_run(arguments: TrainingArguments) -> TrainingArguments:
    """Return a copy of training arguments in which a configuration of TRL has the values that a private run needs.

    In such a configuration bf16, activation_checkpointing and gradient_checkpointing become False; in a DPOConfig
    precompute_ref_log_probs also becomes True and precompute_ref_batch_size 1. Others are copied as they are.
    """
    found = copy.copy(arguments)
    for name, value in _for_class(_SET_BY_A_RUN, arguments).items():
        setattr(found, name, value)
    if not found.bf16 and not found.fp16:
        # `mixed_precision` was set when the arguments were made, perhaps with bf16=True.
        found.mixed_precision = "no"
    return found


def require_honoured(arguments: TrainingArguments) -> None:
    """Raise ValueError if training arguments ask for something that a private run does not do.

    Args:
        arguments: training arguments that `for_a_run` returned.

    Raises:
        ValueError: fields that a private run does not use, such as learning_rate, max_grad_norm and num_train_epochs,
            differ from their defaults (or from the values of `for_a_run`); the message names all of them. Or
            save_only_model and load_best_model_at_end are both True.
    """
    own, wanted = type(arguments), _for_class(_SET_BY_A_RUN, arguments)
    honoured = {*HONOURED, *_for_class(_HONOURED_IN, arguments)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's defaults give deprecation warnings
        # `plain` has the defaults. It must not set up devices, which a Trainer with `arguments` may have done already.
        kind = type(own.__name__, (own,), {"_setup_devices": arguments.device})
        made = {"output_dir": arguments.output_dir, "use_cpu": arguments.use_cpu, "report_to": "none"}
        plain = for_a_run(kind(**made, **({"bf16": False} if wanted else {})))
    faults = []
    for field in fields(arguments):
        value, default = getattr(arguments, field.name), getattr(plain, field.name)
        if field.name not in honoured and value != default:
            use = INSTEAD.get(field.name, "a private run does not use it")
            faults.append(f"{field.name} must be left at {default!r} in {own.__name__}: {use}; got {value!r}")
    if faults:
        raise ValueError("; ".join(faults))
    if arguments.load_best_model_at_end and arguments.save_only_model:
        raise ValueError("save_only_model must be False with load_best_model_at_end: checkpoints are loaded whole")


def _for_class(table: Mapping[str, Any], arguments: TrainingArguments) -> Any:
    return next((table[kind.__name__] for kind in type(arguments).__mro__ if kind.__name__ in table), {})
