"""Measures the constants that the theorems need of a model's losses, with a caveat on each.

The constants are fields of `theory.problem.Problem`: Lipschitz constant, smoothness, effective rank, gap and loss
bound. They are measured on given samples at the model's own weights and at points on a path of gradient descent from
there. Where there is an interval, its upper end is taken, since the theorems need upper bounds.
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
    """What `measure` measures, and how much computation it spends.

    Attributes:
        points: the number of points (vectors of weights) on the path of gradient descent, at least 1; the model's own
            weights are the first.
        path_steps: the number of gradient steps between two points, at least 0. The step size is 1 over the upper end
            of the norm of the mean loss's Hessian at the first point; it is halved where the mean loss would rise.
        effort: how many products with the mean loss's Hessian are spent at each point.
        sample_hessians: the number of samples whose own Hessian is measured at each point, at least 2.
        sample_effort: how many products are spent on each such sample's Hessian.
        power: the even number p in the matrix (sum_k A_k^p)^(1/p), which bounds the mean loss's Hessians A_k at all
            points; 0 if it is not to be measured.
        level: the coverage probability of each interval, in (0, 1).
        least_loss: a lower bound on every sample's loss.

    Raises:
        ValueError: a field is outside its range.
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
    """All that `measure` measured of a model's losses.

    Attributes:
        n: the number of samples.
        d: the number of trainable weights.
        data: the kind of the samples: "public", "synthetic" or "private".
        settings: the settings with which it was measured.
        points: one object for each point on the path, with the attributes `steps`, the number of gradient steps from
            the model's own weights; `value`, the mean loss; `gradient_norms`, the norm of the gradient of each sample's
            loss, shape (n,); `spectrum`, the `Spectrum` of the mean loss's Hessian; and `samples`, the `Samples` of
            single samples' Hessians.
        shared: the `Spectrum` of a matrix H with -H <= A <= H for the mean loss's Hessian A at every point; None with
            one point, or if settings.power is 0.
        layers: what `layers.layer_ranks` returns at the model's own weights.
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
        """The upper end for trace(H), where H is a matrix with -H <= A <= H for the mean loss's Hessian A at every
        point.

        If `shared` is None it is the largest upper end of trace|A| over the points; for several points the smallest
        possible trace(H) may then be larger.
        """
        spectra = [self.shared] if self.shared else [point.spectrum for point in self.points]
        return max(spectrum.absolute_trace.high for spectrum in spectra)

    @property
    def smoothness(self) -> float:
        """The largest upper end of the measured spectral norms (of the Hessians of the mean loss and of single samples
        at every point, and of the matrix H that `shared` describes)."""
        norms = [point.spectrum.norm.high for point in self.points] + [point.samples.norm for point in self.points]
        return max(norms + ([self.shared.norm.high] if self.shared else []))

    def constants(self) -> dict[str, float]:
        """Return the constants that the theorems need, by their names in `theory.problem.Problem`.

        "d" and "smoothness" are the attributes. "r" is `trace_bound`, and "sample_rank" the largest
        `Samples.trace.high` of all points, an upper end for the root mean square over samples of trace|Hessian|; both
        are divided by the smoothness and cut to [1, d]. "gap" is the mean loss at the first point less
        `settings.least_loss`. "lipschitz" is the largest norm of a sample's gradient, and "loss_bound" the largest
        absolute mean loss; both may be larger elsewhere.
        """
        samples = max(point.samples.trace.high for point in self.points)
        return {
            "d": self.d,
            "r": self._effective_rank(self.trace_bound),
            "lipschitz": max(float(point.gradient_norms.max()) for point in self.points),  # a lower bound
            "smoothness": self.smoothness,
            "gap": self.points[0].value - self.settings.least_loss,  # an upper bound: the least loss may be larger
            "loss_bound": max(abs(point.value) for point in self.points),  # a lower bound: |F| may be larger elsewhere
            "sample_rank": self._effective_rank(samples),
        }

    def _effective_rank(self, trace: float) -> float:
        # The theorems use the rank r only in tr(H) <= r ell, so a bound on tr(H) over the smoothness ell serves as r
        return min(max(trace / self.smoothness, 1.0), float(self.d))

    def caveats(self) -> tuple[str, ...]:
        """Return sentences that say how each constant was measured, and why the theorems may need another value."""
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
        """Return the problem file that `dpzero_theory.params` reads, with the constants, the caveats and the
        measurements."""
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
    """Measure the constants that the theorems need of a model's losses, starting at the model's own weights.

    Args:
        objective: the module, its losses and at least 2 samples.
        generator: a CPU generator, the only source of randomness.
        data: the kind of the samples: "public", "synthetic" or "private".
        results_not_private: must be True for private data. It says that the caller will not call the results private.
        settings: what to measure; `MeasureSettings()` if None.

    Raises:
        ValueError: `data` is another word, there are fewer than 2 samples, or a product with a Hessian is not finite.
        PreconditionError: the data is private and results_not_private is False, or a Hessian is zero.
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
