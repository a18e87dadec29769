"""An audit report of the folder that a private run wrote, without its records.

`optim.verify` recomputes every number of the run's claim, and its findings answer three checks. All other checks need
the loop itself and are reported as not tested.
"""

import time
from pathlib import Path

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.report import AuditReport, Entry
from dpzero_theory.optim.files.folder import both
from dpzero_theory.optim.verify import verify
from dpzero_theory.privacy.ledger import LedgerError

_FINDINGS = {
    "accounting": ("files", "private", "epsilon spent", "epsilon of the plan"),
    "steps": ("releases paid for", "releases recorded"),
    "noise-size": ("levels", "noise on the lattice", "released numbers"),
}
"""The names of the findings of `optim.verify` that answer a check of the audit, by the check's name."""


def report_of_folder(folder: Path) -> AuditReport:
    """Returns the audit report of the private run whose folder is `folder`; raises ValueError where it holds none."""
    started = time.perf_counter()
    try:
        content, account = both(folder)
    except (LedgerError, OSError) as error:
        raise ValueError(f"spec must be the folder of a private run; got {' '.join(str(error).split())}") from error
    plan = content.header.plan
    claim = Claim(
        epsilon=account.target_epsilon,
        delta=account.target_delta,
        relation=plan.relation,
        sampling=plan.sampling,
        n=plan.n,
        batch=plan.expected_batch,
        steps=plan.steps,
        noise_multiplier=plan.noise_multiplier,
        clip=plan.clip,
    )
    findings = {finding.name: finding for finding in verify(folder, None, None).findings}

    def verdict(name: str) -> Verdict:
        mine = [findings[key] for key in _FINDINGS.get(name, ()) if key in findings]
        if not mine:
            return untested("the folder has neither the records nor the loop: audit the loop itself")
        said = "; ".join(f"{one.name}: {one.value}" for one in mine)
        if any(one.holds is False for one in mine):
            return violated(said, "put back the files that belong together, or do not claim what they do not show")
        return held(said)

    entries = tuple(Entry(check, verdict(check.name), 0, 0.0) for check in every())
    return AuditReport(claim, View(seed="secret"), entries, 0, time.perf_counter() - started, 0.0)
