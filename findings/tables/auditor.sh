#!/usr/bin/env bash
# Version: jax-privacy 2.0.0, 2.2.0 (commit 6d7add5, the last before its version became 2.3) and its main branch (commit 8967688), with dp-accounting 0.6.0 and jax 0.10.2
# Source: https://github.com/google-deepmind/jax_privacy/commit/aab3e1c (a correction of the lower bound) and
#   https://github.com/google-deepmind/jax_privacy/blob/main/CHANGELOG.md (2.2.0 has a date, but no tag and no file in the package index)
# Output: the table "Lower bounds of another auditor" of docs/results/accountants.md, from 200 audits in each cell; ends with another status than 0 if a row
#   differs.
set -euo pipefail
page=$(realpath "$(dirname "$0")/../../docs/results/accountants.md")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
pip=("${PYTHON:-python3}" -m pip install -q --no-compile)
"${pip[@]}" --target lib jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1 dp-accounting==0.6.0 chex==0.1.92 pydantic==2.12.5
"${pip[@]}" --no-deps --target 2.0.0 jax-privacy==2.0.0
optax=git+https://github.com/google-deepmind/optax@2edbcbe  # the release 0.2.8 lacks a name that the main branch imports
"${pip[@]}" --no-deps --target optax "$optax"
for commit in 6d7add5 8967688; do
    "${pip[@]}" --no-deps --target $commit "git+https://github.com/google-deepmind/jax_privacy@$commit"
done
cat > count.py <<'PY'
import sys

import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor
from scipy.optimize import brentq
from scipy.stats import norm

AUDITS, CANARIES, DELTA = 200, 1000, 1e-5


def truth(mu):
    gap = lambda e: norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - DELTA  # noqa: E731
    return brentq(gap, 0, 50) if mu else 0.0


def gaussian(mu):
    return lambda rng, there: rng.normal(mu * there, size=CANARIES)


def laplace(rng, there):
    return rng.laplace(there, size=CANARIES)


def response(rng, there):
    """The bit `there` with probability e / (1 + e), and small noise that only breaks ties."""
    told = (rng.random(CANARIES) < np.e / (1 + np.e)) == there
    return told + rng.random(CANARIES) / 1e6


def stated(inside, outside):
    try:
        return CanaryScoreAuditor(inside, outside).epsilon_from_gdp(0.05, DELTA)
    except ValueError:  # of the main branch, for some bounds on mu that are nearly 0: it states no epsilon
        return 0.0


def above(draw, true):
    rng = np.random.default_rng(0)
    return sum(stated(draw(rng, 1), draw(rng, 0)) > true for _ in range(AUDITS))


counts = [above(gaussian(mu), truth(mu)) for mu in (1.0, 0.2, 0.0)] + [above(law, 1.0) for law in (laplace, response)]
print("|", sys.argv[1], "|", *(f"{count} |" for count in counts))
PY
for release in "2.0.0" "6d7add5 2.2.0" "8967688 its main branch"; do
    PYTHONPATH=${release%% *}:optax:lib "${PYTHON:-python3}" -W ignore count.py "${release#* }"
done | tee rows.md
! grep -vxFf "$page" rows.md
