"""The functions of `import dpzero_theory as dz` that combine several packages of the library. They write nothing."""

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
    """The parameters that a theorem prescribes for a problem and a privacy target, and the error bound that it proves.

    Attributes:
        step_size, steps: the step size and the number T of steps.
        smoothing: lambda, how far the weights are shifted along a direction to find a record's change of loss; 0 for
            exact derivatives.
        clip: the L2 norm to which one record's contribution to a step is clipped. The contribution is a vector with one
            number for each of the step's K random directions: the change of the record's loss along it, per unit of
            lambda, or the exact derivative. In the paper's Algorithm 1 ("dpgd-0th"), with K = 1, it is this number
            times the direction.
        noise_std: the standard deviation of the noise on the average of the clipped contributions.
        guarantee: the formula of the quantity that the theorem bounds.
        bound: the upper bound on that quantity.

    `theory.problem.Prescription` describes the other fields.
    """

    def plan(self) -> "Plan":
        """Returns the plan of a run with exactly these parameters, for `make_private`.

        Raises:
            ValueError: no run can have these parameters: they are for Algorithm 1 ("dpgd-0th"), or the noise is outside
                a plan's range.
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
    """Returns the parameters that a theorem prescribes for a problem under (epsilon, delta)-differential privacy.

        plan = prescribe(Problem(n=10_000, d=2000, r=8.178), epsilon=2, delta=1e-6).plan()

    Neighbouring data sets differ in one replaced record, and every step uses all records.

    Args:
        problem: the constants that the theorem assumes: n records, d weights, the effective rank r and others.
        epsilon: the target, > 0.
        delta: the target, 0 < delta < 1.
        result: the id of a theorem or corollary, a key of `theory.results.RESULTS`, such as "theorem-3" of the paper.
            The default is its sharpened version; ids of sharpened results end in "-sharp".
        calibration: how the noise for (epsilon, delta) is computed: "exact", by the exact conversion of Gaussian
            differential privacy, or "paper", by the paper's composition lemma.
        options: optional settings. `max_steps` caps the steps T; `max_evaluations` caps n K T, the number of per-record
            loss differences with K directions a step; `max_points` caps the evaluations of a record's loss, 2 n K T
            with central differences and n (K + 1) T with forward and exact ones. A sharpened result takes the largest T
            that all caps allow; without caps, about the smallest T whose bound is at most 5% above that for infinitely
            many steps. Results of the paper have a formula for T and ignore caps. `direction` is the distribution of
            the random directions, a name in `DIRECTIONS` that the theorem covers (by default "sphere").
            `directions_per_step` is K >= 1 (by default 1), or "best" for the K with the smallest bound or, without a
            cap, the smallest K with a bound within 2.5% of it. `difference` is how a record's change of loss along a
            direction is computed: "central" (the default), "forward" or "exact". Forward differences have the same
            bound and take fewer evaluations. Exact derivatives need no smoothing, but losses that have a derivative.

    Returns:
        The parameters. Their `bound` is an upper bound on the quantity in their field `guarantee`: the expected squared
        gradient norm of the mean loss at a uniformly random one of the first T iterates (theorems), or the expected
        suboptimality of the last iterate (corollaries).

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: the theorem's assumptions are not met.
    """
    theorem = RESULTS[check.choice("result", result, RESULTS)]
    found = theorem.prescribe(problem, calibrated_gdp(epsilon, delta, calibration), **options)
    return Prescribed(**{name: getattr(found, name) for name in Prescription.__dataclass_fields__})


def certify(problem: Problem, plan: "Plan | Prescription") -> Certificate:
    """Returns the error bound that the sharpened theorem (theory/sharp/proof.md) proves for a given plan.

    Args:
        problem: the constants that the theorem assumes; its n must be the plan's.
        plan: the plan of a private run with a constant step size, or a prescription.

    Returns:
        A certificate. Its `bound` is an upper bound on E||g||^2, where g is the gradient of the mean loss at a
        uniformly random iterate of the run. If the plan's directions are longer along some weights than along others
        (`Plan.shape`), it bounds E[g^T B g] instead, with B the covariance of the directions; pass the `problem`
        without the shape, which this function applies. The bound is infinite if the step size is too large: each step
        is proved to lower the loss by step_size * progress * ||g||^2 minus other terms, and the certificate's attribute
        `progress` is then <= 0.

    Raises:
        ValueError: the problem's n is not the plan's, or the theorem does not cover the plan: steps of several sizes,
            noise that is not Gaussian, or batches that are neither full nor Poisson.
        PreconditionError: the theorem does not cover the plan's distribution of directions or number of directions.
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
    """Checks the privacy claim of a private run: recomputes all its numbers from the files in the run's folder.

    It does not compare the folder with weights; the command `python -m dpzero_theory.optim.verify` does, with
    `--initial` and `--final`.

    Args:
        folder: the folder that the run wrote.

    Returns:
        A report. Its `fault` is "" if every number holds, and otherwise says what is wrong, also if a file is missing
        or damaged; no exception is raised for that.
    """
    from dpzero_theory.optim.verify import verify as verified

    return verified(Path(folder))
