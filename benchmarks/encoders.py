"""DPZero inside a sentence encoder, by the library's own runs: the counterpart of `benchmarks.heads`."""

from collections.abc import Sequence

import torch

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.first_order import add_lora
from benchmarks.llm.frozen import memoise
from benchmarks.llm.models import LanguageModel
from benchmarks.llm.prompts import Example, Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.scoring import EncoderScorer, classifier
from benchmarks.llm.tasks import task
from dpzero_theory.curvature.encoder import train
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private

__all__ = ["Encoder"]

LONGEST = 32
MOST = 32
"""Points in one pass, which take as many times the memory."""


class Encoder:
    """A sentence classifier on three parts of the records: trained on, chosen by, and reported.

    weights: what is trained beside the label vectors, one of `encoder.SUBSETS`, or `lora`. The model is used up.
    """

    def __init__(self, model: LanguageModel, name: str, parts: Sequence[Sequence[Record]], weights: str) -> None:
        prompter = Prompter(task(name), "encoder", model.tokenizer, LONGEST)
        self._train, *self._others = (prompter.examples(part) for part in parts)
        self._scorer = EncoderScorer(model.pad, 256)
        self._module = classifier(model.module, prompter, model.pad)
        if weights == "lora":
            add_lora(self._module, Configuration(method="lora", seed=0))
        else:
            train(self._module, weights)
        memoise(self._module, model.pad, {})
        self._start = {p: p.detach().clone() for p in self._module.parameters() if p.requires_grad}

    @property
    def n(self) -> int:
        """Records that are trained on."""
        return len(self._train)

    @property
    def d(self) -> int:
        """Weights that are trained."""
        return sum(value.numel() for value in self._start.values())

    def accuracies(self, plans: Sequence[Plan], seed: int) -> list[tuple[float, float]]:
        """Each plan's after training from the start, on the records to choose by and on those to report."""
        return [self._trained(plan, seed) for plan in plans]

    def _trained(self, plan: Plan, seed: int) -> tuple[float, float]:
        with torch.no_grad():
            for parameter, value in self._start.items():
                parameter.copy_(value)
        make_from_seed_not_private(
            self._module,
            self._scorer.losses,
            self._train,
            plan,
            seed=seed,
            collate=list,
            micro_batch=self.n,  # the scorer puts few at a time through the model
            points_at_once=min(2 * plan.directions_per_step, MOST),
        ).run()
        chosen_by, test = (self._accuracy(part) for part in self._others)
        return chosen_by, test

    def _accuracy(self, part: Sequence[Example]) -> float:
        with torch.no_grad():
            found = self._scorer.scores(self._module, part).argmax(dim=1)
        return float((found == torch.tensor([example.label for example in part])).double().mean())
