"""The functions of `import dpzero_theory as dz` that combine several packages of the library.

`prescribe` and `certify` compute; `verify` reads the folder of a run. Nothing is written.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dpzero_theory import check
from dpzero_theory.optim.shape import Shape
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS, calibrated_gdp
from dpzero_theory.theory.sharp.certificate import Certificate, certificate
from dpzero_theory.theory.sharp.smallest import SearchOptions

if TYPE_CHECKING:
    from dpzero_theory.optim.plan import Plan
    from dpzero_theory.optim.verify import Report


epsilon, delta = epsilon_of_history, delta_of_history


class Prescribed(Prescription):
    """A theorem's parameters for a problem and a privacy target, and the error that the theorem certifies for them.

    Attributes:
        step_size, steps, smoothing: the step size alpha, the number of steps T, and lambda, how far the weights are
            shifted along a direction to find a record's change of loss; lambda is 0 for exact derivatives.
        clip: the L2 norm to which one record's contribution to a step is clipped. It is a number for each of the step's
            K random directions u: the change of the record's loss over lambda (central: over 2 lambda), or its exact
            derivative along u. In the paper's Algorithm 1 ("dpgd-0th"), with K = 1, it is this number times u.
        noise_std: the standard deviation of the noise on the average of the clipped contributions.
        guarantee, bound: the formula of the quantity that the theorem bounds, and the upper bound on this quantity.

    `theory.problem.Prescription` describes the other fields.
    """

    def plan(self) -> "Plan":
        """Return the plan of a run with exactly these parameters, for `make_private`.

        Raises:
            ValueError: no run can have these parameters: those of Algorithm 1 (dpgd-0th), or noise outside a plan's
                range.
        """
        from dpzero_theory.optim.plan import Plan

        return Plan.from_prescription(self)


def prescribe(
    problem: Problem,
    *,
    epsilon: float,
    delta: float,
    result: str = "theorem-3-sharp",
    calibration: str = "exact",
    **options: Unpack[SearchOptions],
) -> Prescribed:
    """Return the parameters that a theorem prescribes for a problem under (epsilon, delta)-differential privacy.

        plan = prescribe(Problem(n=10_000, d=2000, r=8.178), epsilon=2, delta=1e-6).plan()

    Neighbouring data sets differ in one replaced record, and every step uses all records.

    Args:
        problem: the constants that the theorem assumes: n records, d weights, the effective rank r and others.
        epsilon: the target, > 0.
        delta: the target, 0 < delta < 1.
        result: id of the theorem or corollary, one of `theory.results.RESULTS`, such as "theorem-3" of the paper or its
            sharpened version, the default. Ids of sharpened results end in "-sharp"; all others are results of the
            paper.
        calibration: how the noise for (epsilon, delta) is computed: "exact", by the exact conversion of Gaussian
            differential privacy, or "paper", by the paper's composition lemma.
        options: what the theorem's parameters may be chosen from; every one may be left out. `max_steps` caps the steps
            T; `max_evaluations` caps n K T, the number of per-record loss differences with K directions a step; and
            `max_points` caps the evaluations of a record's loss, n T 2 K with central differences, n T (K + 1) with
            forward and exact ones. With caps a sharpened result takes the largest T that they all allow, and without
            one about the smallest T whose bound is at most 5% above the bound for infinitely many steps; results of the
            paper have a formula for T and ignore caps.
            `direction` is the law of the random directions, one of `DIRECTIONS` that the theorem covers (by default
            "sphere"), `directions_per_step` is K >= 1 (by default 1) or "best" (the K with the smallest bound or,
            without a cap, the smallest K with a bound within 2.5% of it), and `difference` is how a record's change of
            loss along a direction is computed: "central" (the default), "forward" or "exact". Forward differences have
            the same bound for the same parameters and take fewer evaluations. Exact derivatives have no smoothing; they
            cannot serve losses without a derivative, such as the error rate.

    Returns:
        The parameters. Their `bound` is an upper bound on the quantity in their field `guarantee`: the expected squared
        gradient norm of the mean loss at a uniformly random one of the first T iterates (theorems), or the expected
        suboptimality of the last iterate (corollaries). The method `plan()` makes a run's plan of them.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the theorem's assumptions are not met.
    """
    theorem = RESULTS[check.choice("result", result, RESULTS)]
    found = theorem.prescribe(problem, calibrated_gdp(epsilon, delta, calibration), **options)
    return Prescribed(**{name: getattr(found, name) for name in Prescription.__dataclass_fields__})


def certify(problem: Problem, plan: "Plan | Prescription") -> Certificate:
    """Return the error that the sharpened theorem (theory/sharp/proof.md) certifies for a plan, whoever chose it.

    Args:
        problem: the constants that the theorem assumes; n must be the plan's.
        plan: the plan of a private run with a constant step size, or a prescription.

    Returns:
        A certificate, whose `bound` is an upper bound on E||g||^2, where g = grad F_S(x_tau), F_S is the mean loss, and
        x_tau a uniformly random iterate of the run. If the plan's directions are longer along some weights than along
        others (`Plan.shape`), it bounds E[g^T B g] in its place, with the directions' covariance B; `problem` is given
        without the shape, which this function applies (`Problem.shaped`). The bound is infinite if the step size is so
        large that the theorem bounds nothing: a step is proved to lower the loss by step_size * progress * ||g||^2 less
        other terms, and the factor `progress`, an attribute of the certificate, is then <= 0.

    Raises:
        ValueError: the problem's n is not the plan's, or the theorem does not cover the plan: steps of several sizes,
            noise that is not Gaussian, or batches that are neither full nor Poisson.
        PreconditionError: a ValueError too; the theorem does not cover the plan's law of directions or number of
            directions.
    """
    if problem.n != plan.n:
        raise ValueError(f"problem must have the plan's n = {plan.n}; got {problem.n}")
    if isinstance(plan, Prescription):
        step_size, noise_std = plan.step_size, plan.noise_std
    else:
        if len(set(plan.step_sizes)) != 1 or plan.law is None or plan.law.noise != "gaussian":
            raise ValueError("plan must have one step size and Gaussian noise to be certified")
        if plan.sampling.word not in ("full", "poisson"):
            raise ValueError(f"plan must have full or Poisson batches to be certified; got {plan.sampling.word}")
        step_size = plan.step_sizes[0]
        if plan.shape:
            shape = Shape(plan.shape, plan.direction)
            problem = problem.shaped(shape.smallest, shape.largest)
        # Noise on a lattice is slightly larger than planned. The bound grows with the noise, so the larger one is taken
        noise_std = max(plan.scale * plan.unit, plan.noise_multiplier * plan.clip / plan.expected_batch)
    return certificate(
        problem,
        step_size=step_size,
        steps=plan.steps,
        clip=plan.clip,
        smoothing=plan.smoothing,
        noise_std=noise_std,
        sample_rate=plan.sample_rate if isinstance(plan, Prescription) else plan.sampling.sample_rate,
        direction=plan.direction,
        directions_per_step=plan.directions_per_step,
        algorithm=plan.algorithm,
        difference=plan.difference,
    )


def verify(folder: "str | os.PathLike[str]") -> "Report":
    """Check the privacy claim of a private run from the files in its folder alone.

    Every number of the claim is recomputed, as by `python -m dpzero_theory.optim.verify`. Weights are not compared with
    the folder; the command does so with `--initial` and `--final`.

    Args:
        folder: the folder that the run wrote.

    Returns:
        A report with the findings. Its `fault` is "" if every number holds, and else says what is wrong, such as a file
        that is missing or damaged; no exception is raised for that.
    """
    from dpzero_theory.optim.verify import verify as verified

    return verified(Path(folder))
