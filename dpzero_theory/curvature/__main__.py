"""Measure a model: `python -m dpzero_theory.curvature --model mlp-digits:64 --data digits --out problem.json`.

Then `python -m dpzero_theory.params --problem problem.json --n 10000 --epsilon 2 --delta 1e-6` prescribes the step
size, steps, smoothing, clip and noise. `dpzero_theory.problem_file` describes the file. A "bound" in it holds always, a
"probability" with its level, an "interval" with its level if each random direction's value is normally distributed; an
"estimate" promises nothing. The "density" of a point is the Hessian's spectrum by stochastic Lanczos quadrature:
eigenvalues, and weights that sum to the number of parameters. "layers" has each linear layer's effective ranks of the
second moments of its inputs and of the derivatives by its outputs; --layer-rank of `params`, for low-rank directions,
is the largest sum of the two.

The measurements are not private. Data must be declared --public or --synthetic, unless the name says so already
(digits). With --spend-no-privacy-claim it may be private, and nothing computed from the results is then private.
"""

import argparse
import sys
from collections.abc import Sequence

from dpzero_theory.cli import Parser, command, extra, integer, number, output_file
from dpzero_theory.problem_file import ProblemFile

with extra("torch", "dpzero_theory.curvature"):
    import torch
    from torch.utils import _pytree as pytree

    from dpzero_theory.curvature import forward, tasks
    from dpzero_theory.curvature.measure import MeasureSettings, measure
    from dpzero_theory.curvature.objective import Objective
    from dpzero_theory.curvature.spectrum import Effort


def _parser() -> Parser:
    parser = Parser("dpzero_theory.curvature", __doc__, aliases={"width": "--forward-only"})
    parser.add_argument("--model", required=True, help="mlp-digits:WIDTH, or MODULE:FUNCTION")
    parser.add_argument("--data", required=True, help="digits, or what your own function takes")
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
    parser.add_argument(
        "--samples", type=integer(at_most=10**7), help="how many samples to measure on (default: the task's)"
    )
    parser.add_argument(
        "--points", type=integer(1, 1000), default=3, help="points on the path of gradient descent (default 3)"
    )
    parser.add_argument(
        "--path-steps", type=integer(0, 10**6), default=20, help="gradient steps between points (default 20)"
    )
    parser.add_argument(
        "--search", type=integer(1, 10**4), default=40, help="Lanczos steps for the largest eigenvalues"
    )
    parser.add_argument("--probes", type=integer(2, 10**5), default=16, help="random directions for the traces")
    parser.add_argument("--steps", type=integer(2, 10**4), default=10, help="Lanczos steps per direction")
    parser.add_argument(
        "--sample-hessians", type=integer(2, 10**5), default=8, help="samples whose own Hessian is measured"
    )
    parser.add_argument(
        "--power", type=integer(0, 100), default=2, help="even p of the bound common to the points; 0 for none"
    )
    parser.add_argument(
        "--directions", type=integer(2, 10**6), default=64, help="pairs of directions of --forward-only (default 64)"
    )
    parser.add_argument(
        "--forward-only",
        type=number(above=0, at_most=1e6),
        metavar="WIDTH",
        help="differentiate nothing: differences of losses at WIDTH along --directions pairs of directions",
    )
    parser.add_argument("--level", type=number(above=0, below=1), default=0.95, help="of the intervals (default 0.95)")
    parser.add_argument("--seed", type=integer(0, 2**63 - 1), default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=output_file(), metavar="FILE", help="where to write (default: standard output)")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `python -m dpzero_theory.curvature`: measure a model, and write or print a problem file.

    A problem file is JSON text (`dpzero_theory.problem_file`) with the constants of the model's losses that the
    theorems need, such as smoothness and effective rank. `python -m dpzero_theory.params --problem` reads it.

    Args:
        argv: the command-line arguments, such as ["--model", "mlp-digits:64", "--data", "digits"]; those of the process
            if None. ["--help"] prints all options.

    Returns:
        The exit status 0.

    Raises:
        SystemExit: with status 2, after one line on standard error, if an argument has a fault.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    with parser.refusals():
        text = _run(args, parser).as_json()
        if args.out is None:
            print(text, end="")
        else:
            args.out.write_text(text)
    return 0


def _run(args: argparse.Namespace, parser: Parser) -> ProblemFile:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device must be cpu where there is no GPU; got 'cuda'")
    settings = MeasureSettings(
        points=args.points,
        path_steps=args.path_steps,
        effort=Effort(search=args.search, probes=args.probes, steps=args.steps),
        sample_hessians=args.sample_hessians,
        power=args.power,
        level=args.level,
    )
    with parser.refusals("--data"):
        task = tasks.load(args.model, args.data, args.samples, args.seed)
        data = _declared(args, task.known)
    batches = pytree.tree_map(lambda leaf: leaf.to(args.device), list(task.batches))
    objective = Objective(task.module.to(args.device), task.losses, batches)
    generator = torch.Generator().manual_seed(args.seed)
    if args.forward_only is not None:
        differences = forward.measure_forward(
            objective.losses, objective.start, args.forward_only, args.directions, generator, args.level
        )
        return differences.problem_file(data, task.least_loss)
    measured = measure(objective, generator, data=data, results_not_private=data == "private", settings=settings)
    return measured.problem_file()


def _declared(args: argparse.Namespace, known: str) -> str:
    # `known` is what the task says of its data, empty if the user has to declare it; a flag takes precedence
    said: str | None = args.declared
    if not said and not known:
        raise ValueError(
            f"--data {args.data} must be declared --public or --synthetic: what is measured here is not private "
            "(private data needs --spend-no-privacy-claim)"
        )
    return said or known


if __name__ == "__main__":
    sys.exit(main())
