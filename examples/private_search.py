"""A search over settings on the private records, whose choice is paid for.  python examples/private_search.py FOLDER

A random number of runs is made, each with a setting drawn at random, and the best one alone is released. That model and
its score are (2, 1e-5)-DP (`selection_epsilon`), on two conditions: the folder, the number of runs and all other runs
stay secret, and the score reads public records only.
"""

import math
import os
import random
import sys
from pathlib import Path

import torch
from scipy.optimize import minimize_scalar
from torch.utils.data import TensorDataset

import dpzero_theory as dz
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.risk import calibrate_risk

EPSILON, DELTA, STEPS, BATCH = 2.0, 1e-5, 20, 200
SETTINGS = ({"clip": 1.0, "step_size": 0.1}, {"clip": 3.0, "step_size": 0.3})  # nothing else may differ: it is not free


def draw_runs(mean_runs, source):
    """Draws the number K >= 1 of runs: P(K = k) = (1 - 1/m)^(k - 1)/m with the mean m = `mean_runs` >= 1."""
    number = 1
    while source.random() >= 1 / mean_runs:
        number += 1
    return number


def selection_epsilon(history, delta, mean_runs):
    """Bounds epsilon of `draw_runs(mean_runs)` runs with this `history` each, of which the best alone is released. One
    run is (x, delta(x))-DP for all x; then the release is (a + 2 log(e^b + (m - 1) delta(b)), m delta(a))-DP for all a,
    b >= 0 (dpzero_theory/privacy/laws/derivation.md, section 11). `lower` is the lower bound on epsilon of one run."""
    least, one = (dz.epsilon(history, part) for part in (delta / mean_runs, delta))

    def beyond(b):
        return 2 * (b + math.log1p((mean_runs - 1) * delta_of_history(history, b).upper * math.exp(-b)))

    best = minimize_scalar(beyond, bounds=(0.0, max(least.upper, 1e-6)), method="bounded", options={"xatol": 1e-3})
    upper = (least.upper + min(float(best.fun), beyond(0.0), beyond(least.upper))) * (1 + 1e-12)
    return Bracket(one.lower, upper, upper, least.method)


torch.manual_seed(0)
x = torch.randn(1200, 5)
private = TensorDataset(x, (x[:, 0] > 0).long())
synthetic = torch.randn(200, 5)


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def score(model):
    return float((model(synthetic).argmax(1) == (synthetic[:, 0] > 0)).float().mean())


def plan(setting, epsilon):
    return dz.Plan.for_target(
        n=len(private), target_epsilon=epsilon, target_delta=DELTA, steps=STEPS, expected_batch=BATCH, smoothing=1e-2,
        relation="add-remove", sampling="poisson", **setting,
    )  # fmt: skip


mean_runs = 4


def runs_with(noise):
    return dz.Step(noise, dz.Poisson(BATCH / len(private)), "add-remove", "discrete-gaussian") * STEPS


def spent_by(history):
    return selection_epsilon(history, DELTA, mean_runs)


if __name__ == "__main__":
    one = dz.epsilon(runs_with(calibrate_risk(spent_by, EPSILON, runs_with).value), DELTA).upper
    plans = [plan(setting, one * (1 - 1e-6)) for setting in SETTINGS]
    spent = max(spent_by(each.step * STEPS).upper for each in plans)
    assert spent <= EPSILON, "the search as a whole must meet its budget"

    folder = Path(sys.argv[1])
    folder.mkdir(mode=0o700, parents=True)
    os.umask(0o077)
    source, best = random.SystemRandom(), None
    for number in range(draw_runs(mean_runs, source)):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 2)  # the same initial weights each time
        drawn = source.choice(plans)
        run = dz.make_private(model, losses, private, drawn, target_delta=DELTA, folder=folder / f"run-{number}")
        run.run()
        run.close()
        if best is None or score(model) > best[0]:
            best = score(model), model, drawn
    print(f"score {best[0]:.3f}, clip {best[2].clip}, step size {best[2].step_sizes[0]}; epsilon at most {spent:.4f}")
