"""A run's privacy statement as one JSON value, ordered by what a reviewer asks of a deployment.

The sections follow the questions of NIST SP 800-226 ("Guidelines for Evaluating Differential Privacy Guarantees") and
the kinds of entries in the registry of deployments that Nanayakkara, Ghazi and Vadhan propose (arXiv 2509.13509): the
product, the unit of privacy, the privacy loss, the trust model, the accounting, the implementation, and what is
assumed. It is no copy of a registry's form: what does not follow from the run's files is left out.
"""

import math
from typing import Any

from dpzero_theory.optim.files.statement import FALSE_POSITIVE_RATE, Statement
from dpzero_theory.privacy.bracket import Bracket


def deployment(statement: Statement) -> dict[str, Any]:
    """Return the statement's content by section; all numbers and texts are those of the statement.

    Epsilon is given as a bracket: `lower` and `upper` are certified bounds on the smallest epsilon that holds at this
    delta, and the claim is `upper`. None stands for an infinite end, for which JSON has no number.
    """
    facts, first = statement.facts, statement.costs[0]
    return {
        "product": {
            "what": "weights of a model, trained by noised finite differences of losses",
            "kind of release": f"one release a step, interactively chosen by earlier ones; {facts['steps made']}",
        },
        "unit of privacy": {
            "unit": facts["record"],
            "neighbouring data sets": facts["relation"],
            "records": facts["n"],
            "people with several records": "covered for each record, not for all together"
            if statement.unit == "record"
            else f"a record is all that one {statement.unit} has",
        },
        "privacy loss": {
            "definition": "(epsilon, delta)-differential privacy",
            "claim": statement.claim,
            "epsilon": _ends(first.paid),
            "delta": first.delta,
            "at other deltas": [{"delta": cost.delta, "epsilon": _ends(cost.paid)} for cost in statement.costs[1:]],
            "of the whole plan": [{"delta": cost.delta, "epsilon": _ends(cost.planned)} for cost in statement.costs],
            "attack advantage at most": statement.advantage,
            f"attack's true positive rate at {FALSE_POSITIVE_RATE:g} false ones at most": statement.true_positive_rate,
        },
        "trust model": {
            "model": "central: whoever trains holds the records, the noise and the keys",
            "seen by attackers": "the files of the run's folder but data.key, the weights, and what follows from them",
            "side channels": "not covered: how long steps took, which goes by the secret batches, and power or memory",
        },
        "accounting": {
            "method": first.paid.method,
            "composition": f"{facts['steps paid for']}; {facts['steps planned']} planned",
            "sampling": facts["sampling"],
            "stopping": facts["stopping"],
            "choice of settings": "runs that were made to choose settings count too, and are not in this statement",
            "certificate": statement.certificate,
        },
        "implementation": {
            name: facts[name]
            for name in (
                "algorithm",
                "mechanism",
                "noise",
                "lattice",
                "clip",
                "directions",
                "differences",
                "update",
                "isolation",
                "software",
                "run",
            )
        },
        "assumed": list(statement.assumed),
    }


def _ends(bracket: Bracket) -> dict[str, float | None]:
    """Return both ends of a bracket under the names lower and upper; None stands for an infinite one."""
    return {
        name: end if math.isfinite(end) else None for name, end in (("lower", bracket.lower), ("upper", bracket.upper))
    }
