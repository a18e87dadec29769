#!/usr/bin/env bash
# Version: distributed 2026.8.0 with dask 2026.8.0
# Source: https://distributed.dask.org/en/stable/locality.html#user-control (allow_other_workers) and https://distributed.dask.org/en/stable/resilience.html
# Behaviour: parts of a sum that were named for a worker, with allow_other_workers=True, are computed elsewhere when that worker dies. If for a moment no
#   worker is left, they wait in the state "no-worker" for ever, also after workers have come back; parts that were named for none go on.
# Output: the only worker is killed and its nanny starts it again. A sum of parts without a name arrives; a sum of parts that were named for the worker
#   does not within 15 seconds, while the new worker is idle.
# Matters: a step that adds up parts where their records lie never ends after all preemptible workers were lost at once. Make the parts again when
#   workers are back, or do not name workers.
# Guessed: allow_other_workers lets the worker that comes back do the work; seen: only a worker that is there when the named one dies.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib distributed==2026.8.0 dask==2026.8.0
cat > part.py <<'PY'
import os
import signal
import time

from distributed import Client, LocalCluster, TimeoutError, wait


def part(record):
    return record + 1


def arrives(named):
    """Kill the only worker after four parts were computed. Returns their sum, None if it does not arrive once the worker is back, their states,
    and whether that worker takes other work."""
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        (worker,) = client.scheduler_info()["workers"]
        parts = client.map(part, range(4), workers=[worker], allow_other_workers=True) if named else client.map(part, range(4))
        wait(parts)
        os.kill(client.run(os.getpid)[worker], signal.SIGKILL)
        while list(client.scheduler_info()["workers"]) in ([], [worker]):
            time.sleep(0.1)
        total = client.submit(sum, parts)
        try:
            found = total.result(timeout=15)
        except TimeoutError:
            found = None
        states = client.run_on_scheduler(lambda dask_scheduler: {task.state for task in dask_scheduler.tasks.values() if task.key.startswith("part")})
        idle = client.submit(len, "idle").result(timeout=15) == 4
        return found, sorted(states), idle


if __name__ == "__main__":
    free, named = arrives(False), arrives(True)
    print("without a name:", free, "named:", named)
    assert free[0] == 10 and named == (None, ["no-worker"], True)
PY
PYTHONPATH=lib "${PYTHON:-python3}" part.py
