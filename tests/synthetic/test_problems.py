"""Tests of the problems' losses against plain sums, and of their constants.

The constants are compared with numerical derivatives and minimisers.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.sparse import csr_array

from benchmarks.problems.lipschitz import LogisticRegression, PseudoHuber
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum

exact = settings(deadline=None, derandomize=True, max_examples=50)
numbers = st.floats(-5, 5).map(lambda x: round(x, 3))
spectra = st.floats(0.05, 3).map(lambda x: round(x, 3))
KINDS = [Quadratic, PseudoHuber, LogisticRegression]


def plain_loss(kind, x, point, spectrum, label, norm):
    """Returns the loss of one sample at x from its definition, in Python floats.

    Args:
        kind: the class of the problem.
        x: the weights.
        point: the sample.
        spectrum: the eigenvalues of A, for the losses that have it.
        label, norm: the label, and the norm to which rows are scaled, for logistic regression.
    """
    if kind is LogisticRegression:
        length = math.hypot(*point)
        dot = 0.0 if length == 0 else sum(a * b for a, b in zip(x, point, strict=True)) * norm / length
        return math.log1p(math.exp(-label * dot))
    q = sum(a * (b - c) ** 2 for a, b, c in zip(spectrum, x, point, strict=True))
    return q / 2 if kind is Quadratic else math.sqrt(1 + q) - 1


def build(kind, points, spectrum, labels, norm=1.0):
    return kind(points, labels, norm) if kind is LogisticRegression else kind(points, spectrum)


@st.composite
def instances(draw, kind):
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    points = draw(arrays(float, (n, d), elements=numbers))
    spectrum = draw(arrays(float, d, elements=spectra))
    labels = draw(arrays(float, n, elements=st.sampled_from([-1.0, 1.0])))
    norm = draw(st.floats(0.1, 4))
    x = draw(arrays(float, d, elements=numbers))
    return build(kind, points, spectrum, labels, norm), points, spectrum, labels, norm, x


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_agree_with_their_definition(kind):
    @exact
    @given(instances(kind))
    def check(instance):
        problem, points, spectrum, labels, norm, x = instance
        assert (problem.n, problem.d) == points.shape

        def losses(y):
            return np.array(
                [plain_loss(kind, y, p, spectrum, b, norm) for p, b in zip(points.tolist(), labels, strict=True)]
            )

        np.testing.assert_allclose(problem.losses(x), losses(x), rtol=1e-12, atol=1e-11)
        assert problem.loss(x) == pytest.approx(losses(x).mean(), rel=1e-12, abs=1e-11)
        step = 1e-3 * np.eye(problem.d)  # Five-point differences have an error of about step^4
        numerical = np.array(
            [(8 * (losses(x + e) - losses(x - e)) - losses(x + 2 * e) + losses(x - 2 * e)) / 12e-3 for e in step]
        ).T
        np.testing.assert_allclose(problem.gradients(x), numerical, rtol=0, atol=1e-8)
        np.testing.assert_allclose(problem.gradient(x), numerical.mean(axis=0), rtol=0, atol=1e-8)

    check()


def hessian(problem, x, step=1e-4):
    columns = [(problem.gradient(x + e) - problem.gradient(x - e)) / (2 * step) for e in step * np.eye(problem.d)]
    return np.array(columns)


@pytest.mark.parametrize("kind", [PseudoHuber, LogisticRegression])
def test_assumption_2_holds(kind):
    """The problems meet Assumption 2.

    Gradients have norm at most L; 0 <= Hess <= H; H and each sample's Hessian have norm at most ell.
    """

    @exact
    @given(instances(kind))
    def check(instance):
        problem, points, spectrum, labels, norm, x = instance
        assert np.linalg.norm(problem.gradients(x), axis=1).max() <= problem.lipschitz * (1 + 1e-12)
        if kind is PseudoHuber:
            bound = np.diag(spectrum)
            assert np.trace(bound) == pytest.approx(problem.r * problem.smoothness, rel=1e-14)
        else:
            lengths = np.linalg.norm(points, axis=1, keepdims=True)
            rows = np.where(lengths > 0, points / np.where(lengths > 0, lengths, 1) * norm, 0)
            bound = rows.T @ rows / (4 * problem.n)
        assert np.linalg.norm(bound, 2) <= problem.smoothness * (1 + 1e-12)
        assert np.trace(bound) <= problem.r * problem.smoothness * (1 + 1e-12)
        measured = hessian(problem, x)
        slack = 1e-6 * (1 + problem.smoothness)
        assert np.linalg.eigvalsh(bound - (measured + measured.T) / 2).min() >= -slack
        assert np.linalg.eigvalsh((measured + measured.T) / 2).min() >= -slack
        one = build(kind, points[:1], spectrum, labels[:1], norm)
        assert np.linalg.norm(hessian(one, x), 2) <= problem.smoothness + slack

    check()


def test_constants_are_attained():
    """The constants L, ell and H cannot be smaller: each is reached at one point or in a limit."""
    spectrum = np.array([2.0, 0.5])
    huber = PseudoHuber(np.zeros((1, 2)), spectrum)
    assert huber.lipschitz == pytest.approx(math.sqrt(2), rel=1e-15)
    assert np.linalg.norm(huber.gradient(np.array([1e6, 0]))) == pytest.approx(math.sqrt(2), rel=1e-9)
    np.testing.assert_allclose(hessian(huber, np.zeros(2)), np.diag(spectrum), atol=1e-7)
    logistic = LogisticRegression([[0.3, 0.4]], [1.0], row_norm=3.0)
    assert logistic.lipschitz == 3
    assert np.linalg.norm(logistic.gradient(np.array([-60.0, -80]))) == pytest.approx(3, rel=1e-12)
    assert np.linalg.norm(hessian(logistic, np.zeros(2)), 2) == pytest.approx(9 / 4, rel=1e-7)
    assert logistic.smoothness == pytest.approx(9 / 4, rel=1e-15)


@exact
@given(instances(Quadratic))
def test_gap_of_the_quadratic(instance):
    problem, points, *_, x = instance
    assert problem.gap(points.mean(axis=0)) == pytest.approx(0, abs=1e-12)
    assert problem.gap(x) == pytest.approx(problem.loss(x) - problem.minimum, rel=1e-9, abs=1e-11)
    assert problem.minimum == pytest.approx(problem.losses(points.mean(axis=0)).mean(), rel=1e-9, abs=1e-11)
    assert np.linalg.norm(problem.gradient(points.mean(axis=0))) < 1e-12


@settings(exact, max_examples=25)
@given(instances(PseudoHuber))
def test_gap_of_the_pseudo_huber(instance):
    problem, *_, x = instance
    found = minimize(problem.loss, x, jac=problem.gradient, options={"gtol": 1e-10})
    lower, upper = problem.minimum_bounds
    assert lower <= upper <= lower + 2e-12 * (1 + upper)
    assert lower <= found.fun + 1e-12 * (1 + found.fun)
    assert upper <= found.fun + 1e-9 * (1 + found.fun)
    assert problem.gap(x) == pytest.approx(problem.loss(x) - found.fun, rel=1e-8, abs=1e-9)


@exact
@given(instances(LogisticRegression))
def test_gap_of_logistic_regression_is_a_public_bound(instance):
    problem, _, _, _, norm, x = instance
    assert problem.gap(np.zeros(problem.d)) == pytest.approx(math.log(2), rel=1e-15)
    # With one sample the bound and the loss are equal up to rounding.
    assert problem.gap(x) >= problem.loss(x) * (1 - 1e-14)
    assert problem.gap(x) == pytest.approx(math.log1p(math.exp(norm * math.hypot(*x))), rel=1e-12)


def test_sparse_and_dense_features_agree():
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((150, 120)) * (rng.random((150, 120)) < 0.1)
    dense[7] = 0
    labels = np.where(rng.random(150) < 0.5, 1.0, -1.0)
    left, right = LogisticRegression(dense, labels, 2.0), LogisticRegression(csr_array(dense), labels, 2.0)
    x = rng.standard_normal(120)
    for name in ("losses", "gradients", "loss", "gradient", "margins"):
        np.testing.assert_allclose(getattr(right, name)(x), getattr(left, name)(x), rtol=1e-12, atol=1e-14)


BAD = [math.nan, "x", None]
TWO = np.ones((2, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_data_and_points_are_refused(kind):
    problem = build(kind, TWO.copy(), np.ones(2), np.ones(2))
    for bad in BAD:
        with pytest.raises(ValueError, match="must be finite"):
            build(kind, [[1.0, bad]], np.ones(2), [1.0])
        for method in (problem.losses, problem.loss, problem.gradient, problem.gradients, problem.gap):
            with pytest.raises(ValueError, match="x must be finite"):
                method([1.0, bad])
            with pytest.raises(ValueError, match="x must have shape"):
                method(np.ones(3))
    for data in (np.ones(3), np.ones((0, 2)), np.ones((2, 0)), np.ones((2, 2, 2))):
        with pytest.raises(ValueError, match="must have shape"):
            build(kind, data, np.ones(2), np.ones(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda bad=bad: Quadratic(TWO, bad), "spectrum must")
            for bad in ([1.0, 0.0], [1.0, math.nan], [1.0], [[1.0, 1.0]], "ab")
        ),
        *((lambda bad=bad: paper_spectrum(*bad), "must be") for bad in (("d", 3), (None, 3), ("a", 0), ("a", 2.5))),
    ],
)
def test_bad_constants_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
