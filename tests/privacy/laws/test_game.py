"""Tests of batches of fixed size under replace-one, as a game over data on a line and in the plane.

The theory is section 5 of derivation.md.
"""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.grid import delta_bounds
from dpzero_theory.privacy.laws.gaussian import Gaussian

REMOVE, ADD, BETWEEN = (1, -1, -1), (1, -1, 1), (1, -1, 0)
"""Contributions u, u' and y in the game: those of the record, of the other record, and of the one that makes way."""


def law(q, s, u, v, y):
    """Returns the probabilities of the outputs under P, and the privacy losses of P against the other law.

    q is the sampling rate and s the noise multiplier; u, v and y are the contributions of the record, of the other
    record, and of the one that makes way.
    """
    x = np.linspace(-1 - 8 * s, 1 + 8 * s, 121)
    p, k = ((1 - q) * np.exp(-(((x - y) / s) ** 2) / 2) + q * np.exp(-(((x - m) / s) ** 2) / 2) for m in (u, v))
    return p / p.sum(), np.log(p / k)


def plane(q, s, *points):
    """Returns what `law` returns for contributions `points` in the plane: u, v and y.

    The outputs are in 500 groups of nearly equal loss, whose masses under both laws are kept.
    """
    line = np.linspace(-1 - 6 * s, 1 + 6 * s, 41)
    x = np.stack(np.meshgrid(line, line))
    u, v, y = (np.exp(-((x - np.reshape(m, (2, 1, 1))) ** 2).sum(axis=0) / (2 * s * s)).ravel() for m in points)
    p, k = (1 - q) * y + q * u, (1 - q) * y + q * v
    group = np.argsort(np.argsort(p / k)) * 500 // len(p)
    p, k = np.bincount(group, p) / p.sum(), np.bincount(group, k) / p.sum()
    return p, np.log(p / k)


def game(q, s, steps, epsilon, actions, law=law):
    """Returns delta(epsilon) of `steps` steps whose data may depend on what was released, by dynamic programming.

    The state is epsilon less the loss so far. `actions` are the contributions that each step may have; `law` gives a
    step's law. The index of the best first action in each state, and the states, are returned too.
    """
    reach = epsilon + 8 * math.sqrt(steps * math.expm1(4 / s**2)) * q
    w = np.linspace(-reach, reach, 1001)
    value = np.maximum(-np.expm1(w), 0.0)
    laws = [law(q, s, *action) for action in actions]
    for _ in range(steps):
        left = [
            np.interp(w[:, None] - loss, w, value, right=0.0) @ p
            + np.where(w[:, None] - loss < w[0], -np.expm1(w[:, None] - loss) - value[0], 0.0) @ p
            for p, loss in laws
        ]
        value = np.max(left, axis=0)
    return float(np.interp(epsilon, w, value)), np.argmax(left, axis=0), w


@pytest.mark.parametrize(("q", "s", "steps", "epsilon"), [(0.05, 3.0, 16, 0.3), (0.05, 0.8, 8, 3.0)])
def test_the_exact_number_is_strictly_between_the_ends(q, s, steps, epsilon):
    parts = {k: ((Gaussian(k, q, s / 2), steps),) for k in ("remove", "add", "fixed-size")}
    ends = {k: delta_bounds([part], epsilon) for k, part in parts.items()}
    one, _, _ = game(q, s, steps, epsilon, [REMOVE])
    assert one == pytest.approx(ends["remove"].upper, rel=2e-3)
    lower = max(ends["remove"].upper, ends["add"].upper)
    best, _, _ = game(q, s, steps, epsilon, [REMOVE, ADD, BETWEEN])
    assert 1.02 * lower < best < 0.95 * ends["fixed-size"].lower


def test_the_first_step_adds_beyond_epsilon_and_removes_before():
    _, chosen, w = game(0.05, 3.0, 12, 0.4, [REMOVE, ADD])
    near = np.abs(w) < 0.3
    assert np.all(chosen[near & (w > 0.01)] == 0)
    assert np.all(chosen[near & (w < -0.01)] == 1)


def test_triangles_in_the_unit_circle_add_next_to_nothing():
    def at(angle):
        return math.cos(angle), math.sin(angle)

    ends = [((1, 0), (-1, 0), (y, 0)) for y in (-1, 1)]
    third = 2 * math.pi / 3
    triangles = [(at(0), at(a), at(b)) for a in (math.pi / 2, third, math.pi) for b in np.arange(1, 12) * math.pi / 6]
    question = 0.3, 2.0, 5, 0.8
    two, more = (game(*question, actions, law=plane)[0] for actions in (ends, ends + triangles))
    alone = max(game(*question, [end], law=plane)[0] for end in ends)
    assert two > 1.01 * alone
    assert two <= more < (1 + 5e-4) * two
