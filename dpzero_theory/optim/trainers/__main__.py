"""Private fine-tuning of a language model from a YAML file: `python -m dpzero_theory.optim.trainers` (the `trl` extra).

    python -m dpzero_theory.optim.trainers sft --config run.yaml
    python -m dpzero_theory.optim.trainers dpo --config run.yaml --output_dir out/second --max_length 64

The fields of the file are those of TRL's own commands `trl sft --config` and `trl dpo --config`: the model, adapters
and quantisation, the data sets, and the arguments of the trainer (`trainers.trl`). Beside them stand

    private: {target_epsilon: 2, target_delta: 1e-5, ...}    # the settings of the run, as the trainers take them
    owner: prompt                                            # a column whose equal values are one unit of privacy
    public_evaluation: true                                  # the evaluation set may share records with the training

Every field may be given after the command too, as `--name value`, and is then taken from there. The output folder has
the model, the model card with the privacy statement, and the run's own files in `_dpzero/`, whose `data.key` is secret.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dpzero_theory.cli import Parser, command, extra, input_file

COMMAND = "dpzero_theory.optim.trainers"

with extra("trl", COMMAND) if __name__ == "__main__" else nullcontext():
    import yaml
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from transformers import AutoModelForCausalLM, set_seed
    from trl.scripts.utils import DatasetMixtureConfig, ScriptArguments, TrlParser, get_dataset
    from trl.trainer.model_config import ModelConfig
    from trl.trainer.utils import get_peft_config, get_quantization_config

    from dpzero_theory.optim.trainers.trl import DPZeroDPOTrainer, DPZeroSFTTrainer

TRAINERS: dict[str, type[Any]] = {"sft": DPZeroSFTTrainer, "dpo": DPZeroDPOTrainer}


@dataclass
class PrivateArguments:
    """What a private run needs beside the fields of TRL's command; see the command's help."""

    private: dict[str, Any] | str | None = field(default=None, metadata={"help": "settings of the run, as JSON here"})
    owner: str | None = field(default=None, metadata={"help": "a column whose equal values are one unit of privacy"})
    public_evaluation: bool = field(default=False, metadata={"help": "evaluation records may be training records"})


def _parser() -> Parser:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("kind", choices=tuple(TRAINERS), help="supervised or preference fine-tuning")
    parser.add_argument("--config", type=input_file, help="a YAML file of fields")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Train, and write the model and its card.

    Args:
        argv: the words of the command line; those of the process if None.

    Returns:
        0; bad input exits with status 2.
    """
    parser = _parser()
    options, words = parser.parse_known_args(argv)
    with parser.refusals():
        try:
            trainer, arguments = _trainer(parser, TRAINERS[options.kind], options, words)
        except (yaml.YAMLError, DatasetsError, ImportError, RuntimeError, AttributeError, TypeError) as error:
            # a field whose package is missing, or whose value a library does not know
            raise ValueError(" ".join(str(error).split())) from None
        done = trainer.train(arguments.resume_from_checkpoint)
        trainer.save_model()
        trainer.create_model_card()
        if trainer.is_world_process_zero():
            print(f"{arguments.output_dir}: epsilon {done.metrics['epsilon']:.4g} after {done.global_step} steps")
    return 0


def _trainer(parser: Parser, kind: type[Any], options: Any, words: Sequence[str]) -> tuple[Any, Any]:
    """Return the trainer with the model, the data and the settings of the fields, and its arguments.

    The fields are those of the file `options.config`, and of the other `words` of the command line, which win over the
    file. parser: reports errors.
    """

    class Fields(TrlParser):
        def error(self, message: str) -> NoReturn:
            parser.error(message)

    kinds: Any = (ScriptArguments, kind.config, ModelConfig, DatasetMixtureConfig, PrivateArguments)
    config = ["--config", str(options.config)] if options.config else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of TRL's own defaults
        script, arguments, model, mixture, own, rest = Fields(kinds, allow_abbrev=False).parse_args_and_config(
            [*config, *words, "--bf16", "false"],
            return_remaining_strings=True,  # a run has no mixed precision
        )
    if rest:
        raise ValueError(f"{' '.join(rest)} must not be given: no field of `trl {options.kind}` or of this command")
    if model.model_name_or_path is None:
        raise ValueError("model_name_or_path must be given: a folder with the model, or its name on the hub; got none")
    if script.ignore_bias_buffers:
        raise ValueError("ignore_bias_buffers must be left out: there is no gradient to reduce; got True")
    set_seed(arguments.seed)  # so that all ranks, and a resumed run, split the data alike
    if mixture.datasets:
        data = get_dataset(mixture)
    elif script.dataset_name is not None:
        data = load_dataset(script.dataset_name, name=script.dataset_config, streaming=script.dataset_streaming)
    else:
        raise ValueError("datasets or dataset_name must be given; got neither")
    splits = [script.dataset_train_split, *([script.dataset_test_split] if arguments.eval_strategy != "no" else [])]
    for split in splits:
        if split not in data:
            raise ValueError(f"the data must have a split {split!r}; got {', '.join(data)}")
    how = {
        "revision": model.model_revision,
        "trust_remote_code": arguments.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        "quantization_config": get_quantization_config(model),
        **(arguments.model_init_kwargs or {}),
    }
    arguments.model_init_kwargs = None  # which TRL would use to load a model itself
    trainer = kind(
        AutoModelForCausalLM.from_pretrained(model.model_name_or_path, **how),
        arguments,
        private=_settings(own.private),
        train_dataset=data[splits[0]],
        eval_dataset=data[splits[1]] if splits[1:] else None,
        peft_config=get_peft_config(model),
        owner=own.owner,
        public_evaluation=own.public_evaluation,
    )
    return trainer, arguments


def _settings(private: Any) -> Any:
    """Return the settings of the run, with numbers for texts such as "1e-5", which is how YAML reads 1e-5.

    private: the settings, or their JSON text. Raises ValueError for a text that is no JSON.
    """
    try:
        private = json.loads(private) if isinstance(private, str) else private
    except json.JSONDecodeError:
        raise ValueError(f"private must be a JSON mapping of settings; got {private!r:.60}") from None
    for name, value in private.items() if isinstance(private, dict) else ():
        with suppress(ValueError):
            private[name] = float(value) if isinstance(value, str) else value
    return private


if __name__ == "__main__":
    sys.exit(main())
