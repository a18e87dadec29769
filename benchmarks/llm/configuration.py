"""A run's configuration: model, task, method and every number of it. A row of results is known by these values."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.llm.models import DTYPES, MINILM
from benchmarks.llm.records import Selection
from benchmarks.llm.tasks import KINDS, names
from benchmarks.problems.encoder import SUBSETS
from dpzero_theory import check
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import runnable
from dpzero_theory.sphere import DIRECTIONS

ZEROTH_ORDER = ("mezo", "dpzero", "dpgd-0th")
FIRST_ORDER = ("adamw", "dp-adamw")
METHODS = ("zero-shot", *ZEROTH_ORDER, *FIRST_ORDER)
PRIVATE = ("dpzero", "dpgd-0th", "dp-adamw")
SCHEDULES = ("constant", "linear")
"""The step sizes along a run: constant, or falling linearly to zero after the last step."""

_COLUMNS = {"directions_per_step": "directions"}
"""Fields whose column in the rows, the committed ones included, has another name."""


@dataclass(frozen=True)
class Configuration:
    """One run. The defaults are the paper's for masked models, and the small encoder.

    model: `minilm`, a folder or an id. kind: one of `tasks.KINDS`, or empty for the kind that the model was trained as.
    epsilon, delta, relation, clip: for private methods. sampling: for all methods but zero-shot. batch: the expected
    batch size. direction, directions_per_step, smoothing: for zeroth-order methods; direction None is the paper's
    gaussian, and sphere for dpgd-0th, whose clip needs a direction of known length.
    weights: which weights are trained, one of `encoder.SUBSETS`. seed: picks the records, and for
    methods that are not private also everything else. per_class, total, min_words, dev, test: see `records.Selection`;
    with both per_class and total None, all records train. max_length: of prompts, at most the task's; None for the
    task's. Raises ValueError for values that do not go together.
    """

    model: str = MINILM
    kind: str = ""
    task: str = "sst2"
    method: str = "dpzero"
    epsilon: float = 2.0
    delta: float = 1e-5
    relation: str = "add-remove"
    sampling: str = "poisson"
    steps: int = 10_000
    batch: int = 64
    clip: float = 100.0
    step_size: float = 1e-6
    schedule: str = "constant"
    smoothing: float = 1e-3
    direction: str | None = None
    directions_per_step: int = 1
    weights: str = "all"
    per_class: int | None = 512
    total: int | None = None
    min_words: int = 0
    dev: int = 1000
    test: int = 1000
    max_length: int | None = None
    dtype: str = "float32"
    seed: int = 42

    def __post_init__(self) -> None:
        check.choice("kind", self.kind, ("", *KINDS))
        check.choice("task", self.task, names())
        check.choice("method", self.method, METHODS)
        check.choice("weights", self.weights, SUBSETS)
        check.choice("dtype", self.dtype, DTYPES)
        check.choice("schedule", self.schedule, SCHEDULES)
        check.choice("sampling", self.sampling, runnable())
        check.choice("relation", self.relation, tuple(Relation))
        check.real("epsilon", self.epsilon, above=0)
        check.real("delta", self.delta, above=0, below=1)
        check.real("clip", self.clip, above=0)
        check.real("step_size", self.step_size, above=0)
        check.real("smoothing", self.smoothing, above=0)
        for name in ("steps", "batch", "directions_per_step"):
            check.integer(name, getattr(self, name))
        for name in ("dev", "test", "min_words", "seed"):
            check.integer(name, getattr(self, name), at_least=0)
        if self.direction is not None:
            check.choice("direction", self.direction, DIRECTIONS)
        if self.per_class is not None and self.total is not None:
            raise ValueError(f"per_class must be absent where total is given; got {self.per_class} and {self.total}")

    @property
    def private(self) -> bool:
        return self.method in PRIVATE

    @property
    def directions_kind(self) -> str:
        return self.direction or ("sphere" if self.method == "dpgd-0th" else "gaussian")

    @property
    def selection(self) -> Selection:
        return Selection(self.per_class, self.total, self.min_words, self.dev, self.test)

    def key(self) -> dict[str, Any]:
        """Return the values that this run's method uses, as columns of a row; a value that it does not use is the
        word `none`."""
        values = {**asdict(self), "direction": self.directions_kind}
        unused: set[str] = set()
        if not self.private:
            unused |= {"epsilon", "delta", "relation", "clip"}
        if self.method not in ZEROTH_ORDER:
            unused |= {"smoothing", "direction", "directions_per_step"}
        if self.method == "zero-shot":
            unused |= {"sampling", "steps", "batch", "step_size", "schedule", "weights"}
        return {
            _COLUMNS.get(name, name): "none" if name in unused or value in (None, "") else value
            for name, value in values.items()
        }

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the names in `key`, in order."""
        return tuple(_COLUMNS.get(field.name, field.name) for field in fields(cls))
