"""The ledger and the transcript of a run that goes on: a release is paid for first, and written when it is made."""

from dpzero_theory.optim.files.transcript import Record, Transcript
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from dpzero_theory.privacy.step import Release


class OpenFiles:
    """The open ledger and transcript of a run, which say what it may still release and what it has released.

    plan: what the run does. ledger, transcript: open on rank 0; None on other ranks, and where none is kept. paid: the
    numbers of the releases that are paid for and not begun.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None, transcript: Transcript | None) -> None:
        self._plan, self.ledger, self.transcript = plan, ledger, transcript
        self.paid = range(0)

    @property
    def history(self) -> list[Release]:
        """The releases that the ledger says are paid for; empty without a ledger."""
        return self.ledger.history if self.ledger else []

    def left(self, position: int) -> int:
        """Return how many releases may still be made.

        position: how many releases have moved the weights; it is used only where there is no ledger.
        """
        if self.ledger:
            return self.ledger.releases_left + len(self.paid)
        return self._plan.steps - position

    def begin(self, position: int) -> int:
        """Return the number of the next release, for which the ledger has then paid.

        position: how many releases have moved the weights; it is used only where there is no ledger. Raises
        BudgetSpentError when all releases are made, LedgerError and TranscriptError.
        """
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
        """Pay for the next releases in the ledger, and return their numbers.

        The transcript is put on disk first, and the ledger notes beside the payment how far the transcript is.
        """
        if self.transcript is None:
            return ledger.spend(self._plan.settings)
        self.transcript.sync()
        return ledger.spend(self._plan.settings, self.transcript.state)

    def write(self, release: int, sums: Sums) -> Sums:
        """Write a release into the transcript, and return its sums.

        release: its number. sums: the K released numbers; none where a release is a vector. The transcript is on disk
        when this returns if no further release is paid for.
        """
        if self.transcript:
            self.transcript.append(release, sums, sync=not self.paid)
        return sums

    def records(self) -> list[Record]:
        """Return the releases that the transcript holds; none without a transcript."""
        return self.transcript.records() if self.transcript else []

    def sync(self) -> None:
        """Wait until the transcript is on disk."""
        if self.transcript:
            self.transcript.sync()

    def close(self) -> None:
        """Close both files. Safe to repeat."""
        for file in (self.ledger, self.transcript):
            if file is not None:
                file.close()
