"""The ledger and the transcript of a run that goes on: a release is paid for first, and written when it is made."""

from dpzero_theory.optim.files.transcript import Record, Transcript
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from dpzero_theory.privacy.step import Release


class OpenFiles:
    """What a run may still release, and how far it is.

    ledger, transcript: open, on rank 0; None on other ranks, and where none is kept. paid: the numbers of the releases
    that are paid for and not begun.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None, transcript: Transcript | None) -> None:
        self._plan, self.ledger, self.transcript = plan, ledger, transcript
        self.paid = range(0)

    @property
    def history(self) -> list[Release]:
        """What the ledger says is spent."""
        return self.ledger.history if self.ledger else []

    def left(self, position: int) -> int:
        """How many releases may still be made. position: how many the weights have, which counts without a ledger."""
        if self.ledger:
            return self.ledger.releases_left + len(self.paid)
        return self._plan.steps - position

    def begin(self, position: int) -> int:
        """The number of the next release, which is paid for. Raises BudgetSpentError, LedgerError, TranscriptError."""
        if self.transcript:
            self.transcript.require_writable()
        if self.ledger:
            paid = self.paid or self.pay(self.ledger)
            self.paid = paid[1:]
            return paid[0]
        if self.left(position):
            return position
        raise BudgetSpentError(f"all {self._plan.steps} steps of the plan are made")

    def pay(self, ledger: Ledger) -> range:
        """Pay for the next releases; the ledger then also says how far the transcript is, which is on disk before."""
        if self.transcript is None:
            return ledger.spend(self._plan.settings)
        self.transcript.sync()
        return ledger.spend(self._plan.settings, self.transcript.state)

    def write(self, release: int, sums: Sums) -> Sums:
        """Put a release into the transcript, on disk if it is the last that was paid for; no sums of a vector."""
        if self.transcript:
            self.transcript.append(release, sums, sync=not self.paid)
        return sums

    def records(self) -> list[Record]:
        """What the transcript holds."""
        return self.transcript.records() if self.transcript else []

    def sync(self) -> None:
        """Returns when the transcript is on disk."""
        if self.transcript:
            self.transcript.sync()

    def close(self) -> None:
        """Give up the files. Safe to repeat."""
        for file in (self.ledger, self.transcript):
            if file is not None:
                file.close()
