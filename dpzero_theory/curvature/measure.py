"""Measures the constants that the theorems need of an objective: L, ell, r, gap and B, with caveats on each.

They are the Lipschitz constant, the smoothness, the effective rank, F(x0) - F* and a bound on |F| (see
`theory.problem.Problem`). Everything is measured on the samples of the objective at a few points: the start, and points
on the path of gradient descent from it. The constants are the upper ends of the intervals, since the theorems need
upper bounds. The caveats say which constants are estimates nevertheless. Nothing is written, and the model's weights
stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.curvature.intervals import Interval, quantiles
from dpzero_theory.curvature.layers import layer_ranks
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.region import common
from dpzero_theory.curvature.samples import Samples, measure_samples
from dpzero_theory.curvature.spectrum import Effort, Spectrum, measure_spectrum
from dpzero_theory.problem_file import DATA, ProblemFile

_QUANTILES = (0.5, 0.9, 0.99, 1.0)  # Quantiles of the samples' gradient norms are reported at these probabilities.
_MOMENTS = (2, 4)  # Means of ||grad f_i||^m are reported for these m: --gradient-moment of the calculator takes one.


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """What `measure` measures of a model's losses, and how much computation it spends.

    Attributes:
        points: how many points on the path of gradient descent are measured, the start included; at least 1.
        path_steps: the number of steps of gradient descent between two points. Their step size is 1 over the upper end
            of the measured ||Hess F(x0)||, where F is the mean loss and x0 the start; it is halved where F would rise.
        effort: how many Hessian products are spent on the spectrum at each point, as `spectrum.Effort`.
        sample_hessians: how many single samples' Hessians are measured at each point; at least 2.
        sample_effort: how many products are spent on each single sample's Hessian, as `spectrum.Effort`.
        power: the even p of the matrix (sum_k A_k^p)^(1/p), which bounds the Hessians A_k at all points; 0 for none.
        level: the coverage probability of each interval, in (0, 1).
        least_loss: a lower bound on every loss.

    Raises:
        ValueError: a field outside its range: path_steps must be >= 0, and least_loss finite.
    """

    points: int = 3
    path_steps: int = 20
    effort: Effort = field(default_factory=Effort)
    sample_hessians: int = 8
    sample_effort: Effort = field(default_factory=lambda: Effort(search=12, probes=2, steps=4))
    power: int = 2
    level: float = 0.95
    least_loss: float = 0.0

    def __post_init__(self) -> None:
        check.integer("points", self.points)
        check.integer("path_steps", self.path_steps, at_least=0)
        check.integer("sample_hessians", self.sample_hessians, at_least=2)
        if check.integer("power", self.power, at_least=0) % 2:
            raise ValueError(f"power must be even; got {self.power}")
        check.real("level", self.level, above=0, below=1)
        check.real("least_loss", self.least_loss)


@dataclass(frozen=True, kw_only=True)
class _Point:
    # What was measured of n samples' losses at one point x, a vector of a model's weights

    steps: int  # The number of steps of gradient descent from the model's own weights to x
    value: float  # The mean loss F(x)
    gradient_norms: Array  # The L2 norm of the gradient of each sample's loss at x, shape (n,)
    spectrum: Spectrum  # The measured norm, traces and spectral density of the Hessian of F at x
    samples: Samples  # The measured norms and traces of the Hessians of single samples' losses at x


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that was measured of a model's losses.

    Attributes:
        n, d: the number of samples and the number of weights.
        data: what the samples are: "public", "synthetic" or "private".
        settings: what was asked for.
        points: for each point on the path an object with the number of `steps` of gradient descent to it, the mean loss
            `value`, the samples' `gradient_norms`, shape (n,), `spectrum`, the `Spectrum` of the mean loss's Hessian,
            and `samples`, the largest norm and the root mean square trace of single samples' Hessians (`Samples`).
        shared: the spectrum of a matrix that bounds the Hessians at all points; None if one point was measured, or the
            settings ask for no such matrix (power 0).
        layers: a dictionary for each linear layer at the start, with the effective ranks of its inputs' and its output
            derivatives' second moments, as `layers.layer_ranks` returns them.
    """

    n: int
    d: int
    data: str
    settings: MeasureSettings
    points: tuple[_Point, ...]
    shared: Spectrum | None
    layers: list[dict[str, Any]]

    @property
    def trace_bound(self) -> float:
        """The upper end of the interval of tr(H) for one matrix H with -H <= Hess F <= H at all measured points, F
        being the mean loss. If no H was measured, the largest upper end of tr|Hess F| over the points: with one point
        it serves as the bound on tr(H), H = |Hess F|; with several the theorems' tr(H) may be larger."""
        spectra = [self.shared] if self.shared else [point.spectrum for point in self.points]
        return max(spectrum.absolute_trace.high for spectrum in spectra)

    @property
    def smoothness(self) -> float:
        """The smoothness ell, measured: the largest upper end of the norms of Hessians of the mean loss and of single
        samples' losses at all points, and of the matrix that bounds all Hessians of the mean loss."""
        norms = [point.spectrum.norm.high for point in self.points] + [point.samples.norm for point in self.points]
        return max(norms + ([self.shared.norm.high] if self.shared else []))

    def constants(self) -> dict[str, float]:
        """Return the constants that the theorems need, by their names in `theory.problem.Problem`: "d"; "smoothness",
        the property; "r", `trace_bound`, and "sample_rank", the largest upper end of the root mean square over samples
        of tr|Hess f_i|, both over the smoothness and cut to [1, d]; "gap", the first mean loss less `least_loss`, an
        upper bound; and two lower bounds, as other samples and points may have more: "lipschitz", the largest norm of a
        sample's gradient, and "loss_bound", the largest |mean loss|."""
        # The largest upper end, over points, of the root mean square of tr|Hess f_i| over the losses f_i of samples
        samples = max(point.samples.trace.high for point in self.points)
        return {
            "d": self.d,
            "r": self._effective_rank(self.trace_bound),
            # At other points and for other samples gradients may be longer, so this is a lower bound.
            "lipschitz": max(float(point.gradient_norms.max()) for point in self.points),
            "smoothness": self.smoothness,
            "gap": self.points[0].value - self.settings.least_loss,  # an upper bound
            "loss_bound": max(abs(point.value) for point in self.points),  # a lower bound
            "sample_rank": self._effective_rank(samples),
        }

    def _effective_rank(self, trace: float) -> float:
        # The theorems use the rank r only in tr(H) <= r ell, so a bound on tr(H) over the smoothness ell serves as r
        return min(max(trace / self.smoothness, 1.0), float(self.d))

    def caveats(self) -> tuple[str, ...]:
        where = f"{len(self.points)} point{'s' * (len(self.points) > 1)} and {self.n} samples"
        level = f"{self.settings.level:g}"
        said = [
            f"estimates, not bounds: L, ell and r were measured at {where}; the theorems need them everywhere, so "
            "what is printed is certified only if nothing is larger elsewhere",
            f"L is the largest gradient norm of a sample seen, a lower bound on the assumption's L ({where})",
            f"ell is the largest of ||Hess F|| (upper end, probability {level}) and of the Hessians of "
            f"{self.points[0].samples.count} samples at each point; other samples may be larger",
        ]
        if self.shared:
            said.append(
                f"r is tr(H)/ell, upper end at {level}, for an H that bounds the Hessian at all {len(self.points)} "
                "points together; between and beyond them nothing is known"
            )
        else:
            said.append(
                f"r is the largest tr|Hess F|/ell over points, upper end at {level}: a lower bound on tr(H)/ell for "
                "one H that bounds all of them"
            )
        said.append(
            f"sample_rank, which lambda depends on, is the root mean square of tr|Hess f_i|/ell over "
            f"{self.points[0].samples.count} samples at each point, largest upper end at {level}"
        )
        said.append(f"gap is F(x0) - {self.settings.least_loss:g}, an upper bound because no loss is lower than that")
        said.append("loss_bound is the largest |F| at the points, not along the private run")
        return tuple(said)

    def problem_file(self) -> ProblemFile:
        measurements = {
            "samples": self.n,
            "gradient_moments": {
                str(m): max(float((point.gradient_norms**m).mean()) for point in self.points) for m in _MOMENTS
            },
            "points": [
                {
                    "gradient_steps": point.steps,
                    "loss": point.value,
                    "gradient_norms": quantiles(point.gradient_norms, _QUANTILES),
                    "sample_smoothness": point.samples.norm,
                    "sample_absolute_trace": point.samples.trace.as_dict(),
                    **_describe(point.spectrum),
                }
                for point in self.points
            ],
            "common": _describe(self.shared) if self.shared else None,
            "layers": self.layers,
        }
        return ProblemFile(
            constants=self.constants(), caveats=self.caveats(), data=self.data, measurements=measurements
        )


def _describe(spectrum: Spectrum) -> dict[str, Any]:
    named: Sequence[tuple[str, Interval]] = (
        ("norm", spectrum.norm),
        ("trace", spectrum.trace),
        ("absolute_trace", spectrum.absolute_trace),
        ("effective_rank", spectrum.rank),
    )
    return {
        **{name: interval.as_dict() for name, interval in named},
        "extreme_ritz_values": list(spectrum.extremes),
        "residual": spectrum.residual,
        "products": spectrum.products,
        "density": {"points": spectrum.points.tolist(), "weights": spectrum.weights.tolist()},
    }


def measure(
    objective: Objective,
    generator: torch.Generator,
    *,
    data: str,
    results_not_private: bool = False,
    settings: MeasureSettings | None = None,
) -> Measurement:
    """Measure the constants that the DPZero theorems (`theory`) need of a model's losses, starting at the model's own
    weights: Lipschitz constant, smoothness, effective rank, gap to the least loss and largest loss.

    Args:
        objective: module, losses and samples.
        generator: a CPU generator, the only source of randomness.
        data: what the samples are: "public", "synthetic" or "private".
        results_not_private: must be True for private data: the caller knows that the results are not private.
        settings: what to measure; `MeasureSettings()` if None.

    Returns:
        The measurements; their method `problem_file` makes the file that `dpzero_theory.params` reads.

    Raises:
        ValueError: `data` is none of its values, fewer than 2 samples, or a Hessian's product that is not finite.
        PreconditionError: private data without results_not_private, or a Hessian that is zero.
    """
    check.precondition(
        check.choice("data", data, DATA) != "private" or results_not_private,
        "data must be public or synthetic, since what is measured here is not private; give results_not_private=True "
        "if the results will not be called private",
    )
    s = settings or MeasureSettings()
    places = [objective.start]
    points = [_point(objective, places[0], 0, generator, s)]
    for index in range(1, s.points):
        places.append(objective.descend(places[-1], s.path_steps, 1 / points[0].spectrum.norm.high))
        points.append(_point(objective, places[-1], index * s.path_steps, generator, s))
    shared = None
    if s.power and len(places) > 1:
        shared = measure_spectrum(
            common([objective.hessian(x) for x in places], s.power), generator, s.effort, s.level, root=s.power
        )
    return Measurement(
        n=objective.n,
        d=objective.d,
        data=data,
        settings=s,
        points=tuple(points),
        shared=shared,
        layers=layer_ranks(objective),
    )


def _point(objective: Objective, x: Tensor, steps: int, generator: torch.Generator, s: MeasureSettings) -> _Point:
    return _Point(
        steps=steps,
        value=objective.value(x),
        gradient_norms=objective.gradient_norms(x).cpu().numpy(),
        spectrum=measure_spectrum(objective.hessian(x), generator, s.effort, s.level),
        samples=measure_samples(objective, x, generator, s.sample_hessians, s.sample_effort, s.level),
    )
