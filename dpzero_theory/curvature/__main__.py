"""Measure a model: `python -m dpzero_theory.curvature --model mlp-digits:64 --data digits --out problem.json`.

Then `python -m dpzero_theory.params --problem problem.json --n 10000 --epsilon 2 --delta 1e-6` prescribes the step
size, steps, smoothing, clip and noise. The file's layout is in `dpzero_theory.problem_file`; every interval in it says
what kind it is: bound, probability, interval or estimate (`curvature.intervals.KINDS`). `density` of a point is the
spectrum of its Hessian by stochastic Lanczos quadrature: points and weights, which sum to d.

What is measured is not private. Data must be declared --public or --synthetic, unless the name says so already
(digits, toy); for private data the claim of privacy must be given up by --spend-no-privacy-claim.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpzero_theory import check
from dpzero_theory.cli import Parser, extra, number
from dpzero_theory.problem_file import ProblemFile

with extra("torch", "dpzero_theory.curvature"):
    import torch
    from torch.utils import _pytree as pytree

    from dpzero_theory.curvature import catalog, forward
    from dpzero_theory.curvature.logistic import logistic
    from dpzero_theory.curvature.measure import Settings, measure
    from dpzero_theory.curvature.objective import Objective
    from dpzero_theory.curvature.spectrum import Effort

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m dpzero_theory.curvature", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True, help=", ".join(catalog.NAMES))
    parser.add_argument("--data", required=True, help="digits, toy (random tokens), or a folder")
    declared = parser.add_mutually_exclusive_group()
    declared.add_argument("--public", action="store_const", const="public", dest="declared")
    declared.add_argument("--synthetic", action="store_const", const="synthetic", dest="declared")
    declared.add_argument(
        "--spend-no-privacy-claim",
        action="store_const",
        const="private",
        dest="declared",
        help="the data is private, and nothing derived from these numbers will be called private",
    )
    parser.add_argument("--samples", type=number, help="how many samples to measure on (default: the task's)")
    parser.add_argument("--points", type=number, default=3, help="points on the path of gradient descent (default 3)")
    parser.add_argument("--path-steps", type=number, default=20, help="gradient steps between points (default 20)")
    parser.add_argument("--search", type=number, default=40, help="Lanczos steps for the largest eigenvalues")
    parser.add_argument("--probes", type=number, default=16, help="random directions for the traces")
    parser.add_argument("--steps", type=number, default=10, help="Lanczos steps per direction")
    parser.add_argument("--sample-hessians", type=number, default=8, help="samples whose own Hessian is measured")
    parser.add_argument("--power", type=number, default=2, help="p of the bound common to the points; 0 for none")
    parser.add_argument("--directions", type=number, default=64, help="directions for the clipped shares; 0 for none")
    parser.add_argument(
        "--forward-only",
        type=number,
        metavar="WIDTH",
        help="differentiate nothing: differences of losses at WIDTH along --directions pairs of directions",
    )
    parser.add_argument("--level", type=number, default=0.95, help="level of the intervals (default 0.95)")
    parser.add_argument("--seed", type=number, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write (default: standard output)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; returns the exit status (argparse exits with 2 on bad input)."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        text = _run(args).as_json()
        if args.out is None:
            print(text, end="")
        else:
            args.out.write_text(text)
    except (ValueError, OSError) as error:
        parser.error(_flagged(str(error)))
    return 0


def _flagged(message: str) -> str:
    name, space, rest = message.partition(" ")
    return f"--{name.replace('_', '-')}{space}{rest}" if rest.startswith("must ") and name.isidentifier() else message


def _run(args: argparse.Namespace) -> ProblemFile:
    seed = check.integer("seed", args.seed, at_least=0, at_most=2**63 - 1)
    samples = None if args.samples is None else check.integer("samples", args.samples)
    settings = Settings(
        points=args.points,
        path_steps=args.path_steps,
        effort=Effort(search=args.search, probes=args.probes, steps=args.steps),
        sample_hessians=args.sample_hessians,
        power=args.power,
        directions=args.directions,
        level=args.level,
    )
    if args.out is not None and not args.out.parent.is_dir():
        raise ValueError(f"--out must name a file in a folder; got {str(args.out)!r}")
    if args.model == "logistic":
        return logistic(args.data, samples, seed, _declared(args, "public" if args.data == "digits" else ""))
    task = catalog.load(args.model, args.data, samples, seed)
    data = _declared(args, task.known)
    check.precondition(args.device == "cpu" or torch.cuda.is_available(), "--device: cuda is not available here")
    batches = pytree.tree_map(lambda leaf: leaf.to(args.device), list(task.batches))
    objective = Objective(task.module.to(args.device), task.losses, batches)
    generator = torch.Generator().manual_seed(seed)
    if args.forward_only is not None:
        differences = forward.measure_forward(
            objective.losses, objective.start, args.forward_only, args.directions, generator, args.level
        )
        return forward.problem_file(differences, data, task.least_loss)
    found = measure(objective, generator, data=data, spend_no_privacy_claim=data == "private", settings=settings)
    return found.problem_file()


def _declared(args: argparse.Namespace, known: str) -> str:
    said: str | None = args.declared
    if not said and not known:
        raise ValueError(
            f"--data {args.data} must be declared --public or --synthetic: what is measured here is not private "
            "(private data needs --spend-no-privacy-claim)"
        )
    return said or known


if __name__ == "__main__":
    sys.exit(main())
