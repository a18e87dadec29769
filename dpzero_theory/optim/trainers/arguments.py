"""Which of transformers' `TrainingArguments` a private run honours. Every other one must be left at its default.

A field is in `HONOURED`, or a value other than its default raises ValueError, which says what to use instead. A field
that this version does not know is refused too. A value that is given and is the default cannot be told from one that is
left out. Subclasses of `TrainingArguments` say of fields of their own which are honoured and what to use instead of the
others (`honoured`, `instead`; see `trainers.trl`).
"""

from collections.abc import Collection
from dataclasses import fields

from transformers import TrainingArguments

_LOGGING = (
    "logging_strategy logging_steps logging_first_step log_level log_level_replica log_on_each_node disable_tqdm "
    "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id"
)
_EVALUATION = (
    "eval_strategy eval_steps eval_delay eval_on_start per_device_eval_batch_size prediction_loss_only "
    "eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics "
    "label_names dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order"
)
_SAVING = (
    "output_dir save_strategy save_steps save_total_limit save_only_model save_on_each_node load_best_model_at_end "
    "metric_for_best_model greater_is_better push_to_hub hub_token hub_private_repo hub_model_id hub_strategy "
    "hub_always_push hub_revision resume_from_checkpoint restore_callback_states_from_checkpoint"
)
_PROCESS = (
    "seed full_determinism use_cpu tf32 use_cache remove_unused_columns ddp_backend ddp_timeout local_rank "
    "do_train do_eval do_predict"
)
HONOURED = {
    name: about
    for about, names in {
        "what is logged": _LOGGING,
        "evaluation": _EVALUATION,
        "what is saved": _SAVING,
        "the process": _PROCESS,
    }.items()
    for name in names.split()
}
"""The fields that a private run honours, by name, each with a word for what it is about. Fields about loading data act
on evaluation sets alone: training records are read as the batches are drawn."""

_REFUSED = {
    "the step is that of the run's plan: give step_size in private": "learning_rate",
    "the step is that of the run's plan: give schedule in private": """
        lr_scheduler_type lr_scheduler_kwargs warmup_steps""",
    "the step is that of the run's plan: give update in private": """
        optim optim_args optim_target_modules adam_beta1 adam_beta2 adam_epsilon""",
    "the step is that of the run's plan: give weight_decay in private": "weight_decay",
    "give steps in private": "num_train_epochs max_steps",
    "give expected_batch and micro_batch in private": """
        per_device_train_batch_size gradient_accumulation_steps auto_find_batch_size
        average_tokens_across_devices""",
    "give sampling in private": """
        train_sampling_strategy length_column_name data_seed ignore_data_skip dataloader_drop_last""",
    "give clip in private: each record's difference is clipped, there is no gradient": "max_grad_norm",
    "nothing is backpropagated, no activations are kept": """
        activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
        torch_empty_cache_steps debug""",
    "there is no gradient to reduce": """
        ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph""",
    "smooth in losses": "label_smoothing_factor",
    "load the model in the type it is to have": "bf16 fp16 bf16_full_eval fp16_full_eval",
    "compile the model before it is given": "torch_compile torch_compile_backend torch_compile_mode",
    "patch the model before it is given": "use_liger_kernel liger_kernel_config",
    "it draws anew in each forward, so that differences are not of one function": "neftune_noise_alpha",
    "it depends on the secret sizes of the batches": "include_num_input_tokens_seen skip_memory_metrics",
    "no training loss is logged": "logging_nan_inf_filter",
    "every release is on disk when it is made": "enable_jit_checkpoint",
    "shard with torch's fully_shard and use make_private_with_epsilon": """
        fsdp fsdp_config deepspeed parallelism_config accelerator_config""",
}
INSTEAD = {name: instead for instead, names in _REFUSED.items() for name in names.split()}
"""For each field that is refused, by its name, the end of the error message: what to use instead, or why it has no
effect."""


def defaults(arguments: TrainingArguments) -> TrainingArguments:
    """Return arguments that have all defaults except the output folder and `use_cpu`, which are those of `arguments`.

    It must be called before a Trainer is made, which sets some of the arguments. Raises ValueError for TRL's own
    configurations, whose defaults turn mixed precision on.
    """
    own = type(arguments)
    if own.__module__.startswith("trl."):
        raise ValueError(f"args must be a DPZeroSFTConfig or DPZeroDPOConfig of trainers.trl; got TRL's {own.__name__}")
    return own(output_dir=arguments.output_dir, use_cpu=arguments.use_cpu, report_to="none")


def require_honoured(arguments: TrainingArguments, plain: TrainingArguments) -> None:
    """Raise ValueError that names all fields of the arguments that would have no effect and are not at their defaults.

    plain: arguments with all defaults (`defaults`).
    """
    own = type(arguments)
    honoured: Collection[str] = getattr(own, "honoured", ())
    instead = {**INSTEAD, **getattr(own, "instead", {})}
    name = "TrainingArguments" if own is TrainingArguments else own.__name__
    faults = []
    for field in fields(arguments):
        value, default = getattr(arguments, field.name), getattr(plain, field.name)
        if field.name not in HONOURED and field.name not in honoured and value != default:
            use = instead.get(field.name, "a private run does not know it")
            faults.append(f"{field.name} must be left at {default!r} in {name}: {use}; got {value!r}")
    if faults:
        raise ValueError("; ".join(faults))
