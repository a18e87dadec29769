"""Fine-tune a real sentence encoder on real sentences, privately, in minutes on a CPU.  python -m benchmarks.llm.demo

DPZero on SST-2: 2,048 movie-review phrases of six words or more, epsilon = 2; accuracy on the 872 test sentences before
and after. Trained are the label vectors and the encoder's last normalisation; the layers below run once a phrase. The
settings were chosen by hand in runs without privacy on training phrases, with dev and test accuracy in view: the gain
is optimistic, and on data that are really private that choice would have to be paid for. One record is one phrase, not
one review.

    python -m benchmarks.llm.demo --data DIR        # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks.llm.demo                   # from Hugging Face
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.arguments import Parser
from benchmarks.llm import __main__ as command
from dpzero_theory.arguments import number

__all__ = ["RECIPE", "main"]

RECIPE = {
    "task": "sst2", "method": "dpzero", "total": 2048, "min-words": 6, "dev": 400, "max-length": 48, "delta": 1e-5,
    "weights": "top-norm", "direction": "rademacher", "directions": 16, "steps": 100, "batch": 256, "clip": 30,
    "step-size": 0.02, "schedule": "linear", "smoothing": 1e-3, "rows": 64,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `python -m benchmarks.llm` with RECIPE; the ledger and the transcript are thrown away."""
    parser = Parser(prog="benchmarks.llm.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of local files (default: Hugging Face)")
    parser.add_argument("--epsilon", type=number, default=2.0)
    parser.add_argument("--results", type=Path, help="folder for rows.csv and its manifest (default: none are kept)")
    options = parser.parse_args(arguments)
    given = {**RECIPE, **{name: value for name, value in vars(options).items() if value is not None}}
    flags = [f"--{name}={value}" for name, value in given.items()]
    print("python -m benchmarks.llm " + " ".join(flags), flush=True)
    with TemporaryDirectory() as folder:
        command.main([*flags, f"--out={folder}"])


if __name__ == "__main__":
    main()
