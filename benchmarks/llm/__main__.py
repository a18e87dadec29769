"""One run of a method on a task, with its privacy stated completely.  python -m benchmarks.llm

    python -m benchmarks.llm --data DIR --task sst2 --method dpzero --epsilon 2 --delta 1e-5 --steps 1000 ...
    python -m benchmarks.llm --model FacebookAI/roberta-large --task sst2 --method dpzero --epsilon 2 --clip 200

Defaults are the paper's for masked models (10,000 steps, batch 64, step size 1e-6, smoothing 1e-3, 512 records a class)
and the sentence encoder that needs no download. A run that is interrupted resumes from its folder under --out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.device import chosen_device
from benchmarks.kit.rows import Results
from benchmarks.llm.configuration import METHODS, SCHEDULES, ZEROTH_ORDER, Configuration
from benchmarks.llm.models import DTYPES, SUBSETS, LanguageModel, configuration, load, load_tokenizer, random_model
from benchmarks.llm.privacy import Privacy, opacus_epsilon, search_epsilon
from benchmarks.llm.runs import FIELDS, KEY, execute
from benchmarks.llm.tasks import KINDS, names
from dpzero_theory.cli import Parser, input_folder, integer, number, output_folder
from dpzero_theory.optim.sampler import SAMPLINGS
from dpzero_theory.privacy.certified.pairs import group
from dpzero_theory.privacy.gaussian import RELATIONS
from dpzero_theory.sphere import DIRECTIONS

__all__ = ["main", "privacy_lines"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "kind": KINDS, "task": names(), "method": METHODS, "relation": RELATIONS, "sampling": SAMPLINGS,
    "schedule": SCHEDULES, "direction": tuple(DIRECTIONS), "weights": SUBSETS, "dtype": tuple(DTYPES),
}  # fmt: skip
_HELP = {
    "model": "minilm (default), a folder or an id of Hugging Face",
    "per_class": "training records of each class (default 512)",
    "total": "training records in all, instead of per class",
    "min_words": "only records with at least so many words",
    "directions": "directions per step, clipped jointly",
    "dev": "at most so many dev records",
    "test": "at most so many test records",
    "seed": "picks the records, and the randomness of methods that are not private",
}


def _parser() -> Parser:
    parser = Parser("benchmarks.llm", __doc__)
    defaults = Configuration()
    for name in Configuration.columns():
        value = getattr(defaults, name)
        kind: Any = str if isinstance(value, str) or name in _CHOICES else number
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, choices=_CHOICES.get(name), default=value, help=_HELP.get(name)
        )
    parser.add_argument("--all-records", action="store_true", help="train on all records, not so many per class")
    parser.add_argument("--data", type=input_folder(), help="folder of local files (default: Hugging Face)")
    parser.add_argument("--init", choices=("pretrained", "random"), default="pretrained")
    parser.add_argument("--config", help="with --init random: a size such as roberta-large, a folder or an id")
    parser.add_argument("--tokenizer", help="folder or id (default: the model's)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rows", type=integer(1, 10_000), default=16, help="records in one forward")
    parser.add_argument("--evaluations", type=integer(1, 10_000), default=5)
    parser.add_argument("--search", type=integer(1, 10_000), default=1, help="settings compared")
    parser.add_argument(
        "--out", type=output_folder, default=Path("out/llm"), help="ledgers and transcripts (default out/llm)"
    )
    parser.add_argument("--results", type=Path, help="folder for rows.csv and its manifest (default: none are kept)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print dev on the way and test before and after."""
    parser = _parser()
    options = vars(parser.parse_args(argv))
    device = chosen_device(parser, options["device"])
    values = {name: options[name] for name in Configuration.columns()}
    if options["all_records"] or values["total"] is not None:
        values["per_class"] = None
    try:
        settings = Configuration(**values)
        model = _model(settings, device, options)
        _run(settings, model, options)
    except ValueError as error:
        parser.error(str(error))
    return 0


def _run(settings: Configuration, model: LanguageModel, options: dict[str, Any]) -> None:
    def say(line: str) -> None:
        print("  " + line, flush=True)

    common = {"data": options["data"], "rows": options["rows"], "folder": options["out"], "announce": say}
    print(f"{settings.model} ({model.kind}), {settings.task}, zero-shot:")
    before = execute(Configuration(**{**vars(settings), "method": "zero-shot"}), model, **common).rows[-1]
    say(f"test {100 * before['test_metric']:.1f}, loss {before['test_loss']:.4f}")
    if settings.method == "zero-shot":
        return
    print(f"{settings.method}, {settings.steps:,} steps:")
    outcome = execute(settings, model, evaluations=options["evaluations"], **common)
    after = outcome.rows[-1]
    if options["results"]:
        device = str(next(model.module.parameters()).device)
        with Results(
            options["results"], key=KEY, fields=FIELDS, seeds=[settings.seed], device=device, dtype=settings.dtype
        ) as results:
            results.add([row for row in (before, *outcome.rows) if not results.done(**{k: row[k] for k in KEY})])
    say(f"n = {after['n']:,} training records, d = {after['d']:,} trained weights, {after['seconds']:.0f} s")
    change = 100 * (after["test_metric"] - before["test_metric"])
    say(f"test {outcome.metric} {100 * before['test_metric']:.1f} -> {100 * after['test_metric']:.1f} ({change:+.1f})")
    if outcome.privacy is None:
        print("not private")
        return
    print("\n".join(privacy_lines(outcome.privacy, settings, options["search"])))


def privacy_lines(privacy: Privacy, settings: Configuration, runs: int) -> list[str]:
    """The privacy of a run, its accountants and the cost of the search that chose its settings."""
    lines = ["privacy:", *("  " + line for line in privacy.lines())]
    if settings.method not in ZEROTH_ORDER and (privacy.sampling, privacy.relation) == ("poisson", "add-remove"):
        lines.append(f"  Opacus' RDP accountant on the same run: epsilon = {opacus_epsilon(privacy):.6g}")
    if runs > 1:
        unit = group(
            privacy.noise_multiplier,
            privacy.steps,
            sampling=privacy.sampling,
            relation=privacy.relation,
            sample_rate=privacy.batch / privacy.n,
        )
        cost = search_epsilon([unit], runs, privacy.delta)
        lines.append(f"  search: {runs} settings compared on dev records, which are taken to be public;")
        lines.append(f"  all {runs} runs on the training records together cost epsilon = {cost:.6g}")
    else:
        lines.append("  search: none counted (--search N for a choice among N settings)")
    return lines


def _model(settings: Configuration, device: str, options: dict[str, Any]) -> LanguageModel:
    tokenizer = options["tokenizer"]
    if options["init"] == "pretrained":
        return load(
            settings.model, kind=settings.kind or None, dtype=settings.dtype, device=device, tokenizer=tokenizer
        )
    size = options["config"] or settings.model
    config, kind = configuration(size)
    kind = settings.kind or kind
    module = random_model(config, kind, seed=settings.seed, dtype=settings.dtype, device=device)
    return LanguageModel(module, load_tokenizer(tokenizer or size), kind)


if __name__ == "__main__":
    sys.exit(main())
