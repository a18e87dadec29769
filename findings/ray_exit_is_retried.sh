#!/usr/bin/env bash
# Version: ray 2.60.0
# Source: https://docs.ray.io/en/latest/ray-core/fault_tolerance/tasks.html (errors of the application are not retried, a worker that exits is)
# Behaviour: a task that ends by sys.exit(0), as a program's main function does when all went well, counts as a worker that died. It is run
#   again, by default three times more, and then the caller gets WorkerCrashedError. An error that the task raises is not retried.
# Output: a task that appends a line to a file: one line where it returns or raises ValueError, four where it ends by sys.exit(0).
# Matters: a task that calls a command's main function makes its release four times, each with noise of its own, and the only one that is
#   heard of is an error. Whoever pays for one release has shown four. Catch SystemExit in the task, or set max_retries=0 for releases.
# Guessed: an error to the caller at once and no retry, as the exit is on purpose; seen: four runs.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib ray==2.60.0
RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import sys
from pathlib import Path

import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)


@ray.remote
def release(runs, end):
    with runs.open("a") as file:
        file.write("one more release\n")
    if end == "exit":
        sys.exit(0)
    if end == "error":
        raise ValueError(end)


counts = {}
for end in ("return", "error", "exit"):
    runs, told = Path(f"{end}.txt").absolute(), None
    try:
        ray.get(release.remote(runs, end))
    except ray.exceptions.RayError as error:
        told = type(error).__name__
    counts[end] = len(runs.read_text().splitlines()), told
print(counts)
assert {end: count for end, (count, _) in counts.items()} == {"return": 1, "error": 1, "exit": 4}
assert counts["exit"][1] == "WorkerCrashedError"
PY
