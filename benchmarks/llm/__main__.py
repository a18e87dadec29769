"""One run of a method on a task, with a complete statement of its privacy.  python -m benchmarks llm

    python -m benchmarks llm --data DIR --task sst2 --method dpzero --epsilon 2 --delta 1e-5 --steps 1000 ...
    python -m benchmarks llm --model FacebookAI/roberta-large --task sst2 --method dpzero --epsilon 2 --clip 200

The defaults are the paper's for masked models (10,000 steps, batch 64, step size 1e-6, smoothing 1e-3, 512 records a
class), and the sentence encoder that needs no download. A run that is interrupted resumes from its folder under --out.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, Flag, flag
from benchmarks.kit.rows import Results
from benchmarks.llm.configuration import METHODS, SCHEDULES, Configuration
from benchmarks.llm.models import DTYPES, LanguageModel, configuration, load, load_tokenizer, model_name, random_model
from benchmarks.llm.records import Splits, splits
from benchmarks.llm.runs import FIELDS, KEY, execute
from benchmarks.llm.tasks import KINDS, names, task
from benchmarks.problems.encoder import SUBSETS
from dpzero_theory import check
from dpzero_theory.cli import Parser, input_folder, integer, number, output_folder
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import runnable
from dpzero_theory.sphere import DIRECTIONS

_CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS, "task": names(), "method": METHODS, "relation": tuple(Relation), "sampling": runnable(),
    "schedule": SCHEDULES, "direction": tuple(DIRECTIONS), "weights": SUBSETS, "dtype": tuple(DTYPES),
}  # fmt: skip
_FIELDS = [field.name for field in fields(Configuration)]
_positive, _count = number(at_least=1e-30, at_most=1e30), integer()
_TYPES: dict[str, Callable[[str], Any]] = {
    "model": model_name, "epsilon": number(above=0, at_most=1e4), "delta": number(above=0, below=1),
    "clip": _positive, "step_size": _positive, "smoothing": _positive,
    "steps": _count, "batch": _count, "directions_per_step": integer(1, 10**6),
    "per_class": _count, "total": _count, "min_words": integer(0, 10**6),
    "dev": integer(0), "test": _count, "max_length": integer(1, 10**6), "seed": integer(0, 2**32 - 1),
}  # fmt: skip
_HELP = {
    "model": "minilm (default), a folder or an id of Hugging Face",
    "per_class": "training records of each class (default 512)",
    "total": "training records in all, instead of per class",
    "min_words": "only records with at least so many words",
    "directions_per_step": "directions, clipped jointly",
    "dev": "at most so many dev records",
    "test": "at most so many test records",
    "seed": "picks the records, and the randomness of methods that are not private",
}


def _flags() -> list[Flag]:
    """Return a flag for every field of `Configuration`, and those of the command alone."""
    defaults = Configuration()
    return [
        *(
            flag(
                f"--{name.replace('_', '-')}",
                dest=name,
                type=_TYPES.get(name, str),
                choices=_CHOICES.get(name),
                default=getattr(defaults, name),
                help=_HELP.get(name),
            )
            for name in _FIELDS
        ),
        flag("--all-records", action="store_true", help="train on all records, not so many per class"),
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--init", choices=("pretrained", "random"), default="pretrained"),
        flag("--config", type=model_name, help="with --init random: a size such as roberta-large, a folder or an id"),
        flag("--tokenizer", type=model_name, help="folder or id (default: the model's)"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--rows", type=integer(1, 10_000), default=16, help="records in one forward"),
        flag("--evaluations", type=integer(1, 10_000), default=5),
        flag(
            "--out",
            dest="out",
            type=output_folder,
            default="out/llm",
            help="ledgers, transcripts and rows.csv (default out/llm)",
        ),
    ]


def _body(parser: Parser, given: Namespace) -> int:
    """Run the configuration that the flags in `given` say. Prints the metric on the dev records on the way and on the
    test records before and after, and the privacy, and saves the rows. Returns the exit status 0; what is refused is a
    parser's error."""
    options = vars(given)
    device = chosen_device(parser, options["device"])
    values = {name: options[name] for name in _FIELDS}
    if options["init"] == "random":
        values["model"] = f"random:{_size(options)}"
    if options["all_records"] or values["total"] is not None:
        values["per_class"] = None
    if options["config"] is not None and options["init"] != "random":
        parser.error("--config must be given with --init random")
    with parser.refusals():
        settings = Configuration(**values)
    with parser.refusals("--data"):
        found = splits(task(settings.task), settings.selection, settings.seed, options["data"])
    with parser.refusals():
        check.integer("batch", settings.batch, at_most=max(len(found.train), 1))
    with parser.refusals("--model"):
        model = _model(settings, device, options)
    with parser.opened("--out", _rows(settings, options, device)):
        pass
    with parser.refusals():
        _run(settings, model, found, options)
    return 0


def _rows(settings: Configuration, options: dict[str, Any], device: str) -> Results:
    return Results(
        options["out"], key=KEY, fields=FIELDS, seeds=[settings.seed], device=device, dtype="a column of the rows"
    )


def _run(settings: Configuration, model: LanguageModel, found: Splits, options: dict[str, Any]) -> None:
    def say(line: str) -> None:
        print("  " + line, flush=True)

    common = {"found": found, "rows": options["rows"], "folder": options["out"], "announce": say}
    print(f"{settings.model} ({model.kind}), {settings.task}, zero-shot:")
    before = execute(Configuration(**{**vars(settings), "method": "zero-shot"}), model, **common).rows[-1]
    say(f"test {100 * before['test_metric']:.1f}, loss {before['test_loss']:.4f}")
    if settings.method == "zero-shot":
        return
    print(f"{settings.method}, {settings.steps:,} steps:")
    outcome = execute(settings, model, evaluations=options["evaluations"], **common)
    after = outcome.rows[-1]
    with _rows(settings, options, str(next(model.module.parameters()).device)) as results:
        results.add([row for row in (before, *outcome.rows) if not results.done(**{k: row[k] for k in KEY})])
    say(f"n = {after['n']:,} training records, d = {after['d']:,} trained weights, {after['seconds']:.0f} s")
    change = 100 * (after["test_metric"] - before["test_metric"])
    say(f"test accuracy {100 * before['test_metric']:.1f} -> {100 * after['test_metric']:.1f} ({change:+.1f})")
    if outcome.privacy is None:
        print("not private")
        return
    print("privacy:", *outcome.privacy.lines(), sep="\n  ")


def _model(settings: Configuration, device: str, options: dict[str, Any]) -> LanguageModel:
    tokenizer = options["tokenizer"]
    if options["init"] == "pretrained":
        return load(
            settings.model, kind=settings.kind or None, dtype=settings.dtype, device=device, tokenizer=tokenizer
        )
    size = _size(options)
    config, kind = configuration(size)
    kind = settings.kind or kind
    module = random_model(config, kind, seed=settings.seed, dtype=settings.dtype, device=device)
    return LanguageModel(module, load_tokenizer(tokenizer or size), kind)


def _size(options: dict[str, Any]) -> str:
    """Return the name of a model with random weights, by which rows and runs know it."""
    return str(options["config"] or options["model"])


EXPERIMENT = Command(
    "llm",
    __doc__,
    _body,
    _flags(),
    one_of=("--per-class", "--total", "--all-records"),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
