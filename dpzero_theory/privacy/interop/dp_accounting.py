"""The certified accountant as a `dp_accounting.PrivacyAccountant`.

    from dpzero_theory.privacy.interop.dp_accounting import CertifiedAccountant
    CertifiedAccountant().compose(event).get_epsilon(1e-5)

It takes the place of `PLDAccountant` in code written for dp-accounting, also in calls of `calibrate_dp_mechanism`.
Importing this module needs dp-accounting (extra `compare`).
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.privacy_accountant import PrivacyAccountant

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.interop.events import RELATIONS, UnsupportedEvent, merged, parts
from dpzero_theory.privacy.step import Step

_Refusal = PrivacyAccountant.CompositionErrorDetails


class CertifiedAccountant(PrivacyAccountant):  # type: ignore[misc]
    """A dp-accounting accountant whose answers are the certified upper ends of this package's brackets.

    neighboring_relation: dp-accounting's relation, by default ADD_OR_REMOVE_ONE; REPLACE_SPECIAL is called zero-out in
    this package. value_discretization_interval, orders: accepted and ignored, since they set the accuracy of
    dp-accounting's own accountants. `events.history_from_event` says which events are accounted and what a noise
    multiplier means. Raises ValueError for another relation.
    """

    def __init__(
        self,
        neighboring_relation: Any = NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float | None = None,
        *,
        orders: object = None,
    ) -> None:
        name = getattr(neighboring_relation, "name", neighboring_relation)
        self._relation = RELATIONS[check.choice("neighboring_relation", name, RELATIONS)]
        super().__init__(neighboring_relation)
        self._history: tuple[Step, ...] = ()
        self._unprotected = False

    @property
    def history(self) -> tuple[Step, ...]:
        """Everything that was composed, as releases; parts that protect nothing are not among them."""
        return self._history

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        """Compose `count` times the event if `do_compose`, otherwise only find out whether that is possible.

        As dp-accounting expects, it returns None, or an object that says why the event is not accounted.
        """
        try:
            found = list(parts(event, self._relation, count if do_compose else max(count, 1)))
        except UnsupportedEvent as error:
            return _Refusal(error.event, str(error))
        if do_compose:
            self._unprotected |= None in found
            self._history = merged([*self._history, *(r for r in found if r is not None)])
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """The certified epsilon at target_delta in [0, 1]; infinite if something that was composed protects nothing."""
        delta = check.real("target_delta", target_delta, at_least=0, at_most=1)
        if self._unprotected:
            return math.inf
        if not self._history or delta == 1:
            return 0.0
        if delta == 0 and any("laplace" not in r.mechanism for r in self._history):
            return math.inf
        return epsilon_of_history(self._history, delta).upper

    def get_delta(self, target_epsilon: float) -> float:
        """The certified delta at target_epsilon >= 0; 1 if something that was composed protects nothing."""
        if self._unprotected:
            return 1.0
        if not self._history or target_epsilon == math.inf:
            return 0.0
        return delta_of_history(self._history, target_epsilon).upper
