#!/usr/bin/env bash
# Version: distributed 2026.8.0 with dask 2026.8.0
# Source: https://distributed.dask.org/en/stable/api.html#distributed.Client.submit (its argument `pure`)
# Behaviour: submit and map name a task by the function and its arguments, and a name that is there already is not computed again. A function
#   that draws from the operating system is no exception, unless the caller says pure=False.
# Output: two submits of a noise function return the same future, and map over four equal scales four equal numbers; with pure=False they
#   differ.
# Matters: noise that workers draw is repeated from release to release while any earlier future is alive, so that the difference of two
#   releases holds no noise at all; four shares of noise that are added have twice the planned standard deviation, and are one number.
# Guessed: each call is one more draw; seen: one draw for all.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib distributed==2026.8.0 dask==2026.8.0
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import secrets

from distributed import Client


def noise(scale: float) -> float:
    return secrets.SystemRandom().gauss(0, scale)


with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    first, second = client.submit(noise, 1.0), client.submit(noise, 1.0)
    shares = client.gather(client.map(noise, [2.0] * 4))
    fresh = client.gather(client.map(noise, [2.0] * 4, pure=False))
    same = first.key == second.key and first.result() == second.result()
    print("same:", same, "shares:", shares, "with pure=False:", fresh)
    assert same and len(set(shares)) == 1 and len(set(fresh)) == 4
PY
