#!/usr/bin/env bash
# Version: ray 2.60.0
# Source: https://docs.ray.io/en/latest/ray-core/actors/task-orders.html (one sentence: the order is not guaranteed when tasks are retried)
# Behaviour: an actor with max_restarts and max_task_retries executes the calls of one caller in the order in which they were submitted. When its
#   process dies, the call that was running and all that wait are executed by the new process in a random order, without an error or a warning.
# Output: calls 0 to 4 are answered. Calls 5 to 11 are submitted in this order, and the process is killed in call 5: the new one executes them in
#   another, for example 8, 11, 6, 9, 5, 7, 10, in each of three actors. Its counter begins anew.
# Matters: an actor that adds up parts, counts steps, draws noise or keeps the ledger trusts the order. After a death step 11 may be paid and drawn
#   before step 6, from a generator that begins where step 0 began. Say the step in each call and refuse any other, or do not retry.
# Guessed: the calls that are left run in the order in which they were submitted; seen: in a random order.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib ray==2.60.0
RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import os
import signal
from pathlib import Path

import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
FIRST, REST = range(5), range(5, 12)


@ray.remote(max_restarts=1, max_task_retries=1)
class Counter:
    def __init__(self, mark):
        self.mark, self.life, self.calls = mark, 1 + mark.exists(), 0

    def add(self, number):
        if number == 5 and self.life == 1:
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)  # as a machine that goes down
        self.calls += 1
        return self.life, self.calls, number


orders = []
for turn in range(3):
    counter = Counter.remote(Path(f"died{turn}").absolute())
    assert ray.get([counter.add.remote(number) for number in FIRST]) == [(1, number + 1, number) for number in FIRST]
    found = sorted(ray.get([counter.add.remote(number) for number in REST]))
    print(found)
    assert [(life, call) for life, call, _ in found] == [(2, call) for call in range(1, 8)]
    orders.append([number for _, _, number in found])
    assert sorted(orders[-1]) == [*REST]
assert sum(order != [*REST] for order in orders) >= 2
PY
