"""The jobs for a GPU, the most valuable first: commands, and estimates of the time and memory that they need.

An estimate of time is a sum of work (`cards.Work`). For a model of d weights and t tokens, a step makes two forward
passes, which is 4 d t FLOP, and reads or writes the weights 8 times. Layers that do not fit into memory come from
files, at 4 GB/s. The estimate of memory is the least with which the job still shows what it is for; a part of a job
that does not fit becomes a row that says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.gpu.cards import Work

PRESETS = ("smoke", "full")
_START = 30.0
"""The estimated seconds until a command that imports transformers begins to use the GPU."""


@dataclass(frozen=True)
class Job:
    """One command to run on a GPU.

    `shows` says what the job is for. `module` and `command` are the module and its arguments, in which {device}, {data}
    and {model} stand for values of options; --out is added when it runs. `smoke` has the arguments of the small run of
    the preset `smoke`. `out` is the folder of the rows, relative to that of the whole call. `work` and `memory_gib` are
    what the full run needs. `parts` is the number of equal parts of the work, so that time for one part is enough to
    begin. `needs` are the options without which the job cannot run. `unless` names a job that makes this one needless
    if it fits.
    """

    name: str
    shows: str
    module: str
    command: str
    smoke: str
    out: str
    work: Work
    memory_gib: float = 8.0
    parts: int = 1
    needs: Sequence[str] = field(default=())
    unless: str = ""

    def words(self, preset: str, **options: object) -> list[str]:
        """Return the words that follow `python -m` to run the job with a preset ("smoke" or "full"), without --out.
        `options` has the values of {device}, {data} and {model}."""
        arguments = self.command if preset == "full" else self.smoke
        return [self.module, *(word.format(**options) for word in arguments.split())]

    def in_smoke(self, seconds: float = 15.0) -> "Job":
        """Return the job as the preset `smoke` runs it: a job of `seconds` seconds that needs only 1 GiB of memory."""
        values = {**vars(self), "work": Work(seconds), "memory_gib": 1.0, "parts": 1, "unless": ""}
        return Job(**{**values, "needs": [name for name in self.needs if f"{{{name}}}" in self.smoke]})


_WEIGHTS = {
    "roberta-large": 0.355,
    "opt-1.3b": 1.32,
    "opt-6.7b": 6.66,
    "opt-13b": 12.9,
    "opt-30b": 30.0,
    "opt-66b": 65.7,
}
"""The number of weights of each model, in units of 10^9."""


def _steps(model: str, count: float, tokens: int, kind: str) -> Work:
    """Return the work of loading a model and making `count` steps on `tokens` tokens each. `kind` is the type of its
    numbers: "half" or "float32"."""
    weights, size = _WEIGHTS[model] * 1e-3, 2 if kind == "half" else 4
    # a step moves the weights through memory 8 times; making the model (random weights, copied to the GPU) counts as 20
    # times
    moved = (8 * count + 20) * size * weights
    return Work(_START, traffic=moved, **{kind: 4 * weights * tokens * count})


def _hashed(model: str, kind: str, passes: int) -> Work:
    """Return the work of copying a model's weights to the processor and hashing them there at 5 GB/s, `passes` times.
    `kind` is the type of its numbers: "half" or "float32"."""
    return Work(passes * _WEIGHTS[model] * (2 if kind == "half" else 4) / 5)


def _sum(*works: Work) -> Work:
    return Work(*(sum(values) for values in zip(*(vars(work).values() for work in works), strict=True)))


def _opt(size: str, steps: int) -> Job:
    """Return the job that measures OPT of this size ("1.3b" ... "66b") with three methods, each in a process of its
    own, for `steps` timed steps. DPZero's steps are timed twice, the second time in turns with MeZO's."""
    model, smoke = f"opt-{size}", {"1.3b": 7, "6.7b": 8, "13b": 9, "30b": 10, "66b": 11}[size]
    method = "dpzero" if size == "1.3b" else "forwards"
    cells = _sum(*(_steps(model, count * (steps + 2), 2048, "half") for count in (1, 1, 3)), _hashed(model, "half", 6))
    return Job(
        model,
        f"OPT-{size.upper()}, random weights, batch 8 of 256 tokens: DPZero's step beside two forwards and MeZO's",
        "benchmarks.llm.memory",
        f"tab:opt-memory --models {model} --methods forwards mezo dpzero --steps {steps} --device {{device}}",
        f"smoke --models opt-tiny --methods {method} --length {smoke} --device {{device}}",
        "llm_memory_opt",
        cells,
        memory_gib=_WEIGHTS[model] * 1e9 * 2 * 1.05 / 2**30 + 2,
        parts=3,
    )


JOBS = (
    Job(
        "tests",
        "bits of the directions against the CPU's, engines against the reference, the captured loop",
        "benchmarks.gpu.tests",
        "--preset full",
        "--preset smoke",
        "tests",
        Work(150),
        memory_gib=2,
    ),
    Job(
        "step-roberta-large",
        "one step beside two forwards, MeZO's algorithm in place, AdamW and DP-AdamW: time and peak memory",
        "benchmarks.optimizer_step",
        "--preset gpu --sizes roberta-large --budget 60 --device {device}",
        "--preset gpu-smoke --sizes tiny --turns 2 --device {device}",
        "optimizer_step",
        _sum(
            _steps("roberta-large", 15 * 11 + 8, 64 * 128, "float32"),
            _steps("roberta-large", 15 * 11 + 8, 64 * 128, "half"),
            _hashed("roberta-large", "float32", 18),
            _hashed("roberta-large", "half", 18),
        ),
        memory_gib=12,
        parts=2,
    ),
    Job(
        "step-opt-1.3b",
        "the same for OPT-1.3B, batch 8",
        "benchmarks.optimizer_step",
        "--preset gpu --sizes opt-1.3b --budget 60 --device {device}",
        "--preset gpu-smoke --sizes opt-tiny --turns 2 --device {device}",
        "optimizer_step",
        _sum(_steps("opt-1.3b", 15 * 9 + 8, 8 * 256, "half"), _hashed("opt-1.3b", "half", 18)),
        memory_gib=8,
    ),
    _opt("1.3b", 20),
    Job(
        "grid",
        "the paper's synthetic grid: all methods, five seeds",
        "benchmarks.synthetic",
        "--preset paper --seeds 5 --device {device}",
        "--preset smoke --modes c --device {device}",
        "synthetic",
        Work(260, float64=200, float32=900),
        memory_gib=4,
        parts=210,
    ),
    Job(
        "fixed-rank",
        "r = 5 whatever d, 10^2 to 10^7, five seeds (in the coordinates that runs can tell apart)",
        "benchmarks.rank",
        "--experiments dimension --seeds 5 --device {device}",
        "--experiments rank --seeds 1 --device {device}",
        "rank",
        Work(150, float64=10),
        memory_gib=4,
        parts=35,
    ),
    *(_opt(size, 10) for size in ("6.7b", "13b", "30b", "66b")),
    Job(
        "tables-encoder",
        "the paper's accuracy table on a small encoder, 3 seeds (852 runs)",
        "benchmarks.llm.table",
        "tab:dpzero-mezo --preset few-steps --batch-rows 512 --data {data} --device {device}",
        "tab:dpzero-mezo --preset smoke --rows zero-shot mezo dpzero:6 --data {data} --device {device}",
        "llm_dpzero_mezo",
        Work(852 * 12),
        memory_gib=6,
        parts=852,
        needs=("data",),
    ),
    Job(
        "tables-roberta",
        "SST-2 at the paper's hyper-parameters: RoBERTa-large, 10,000 steps",
        "benchmarks.llm.table",
        "tab:dpzero-mezo --preset full --tasks sst2 --rows zero-shot dpzero:2 dpzero:6 mezo --batch-rows 64"
        " --model {model} --data {data} --device {device}",
        "tab:noise --preset smoke --data {data} --device {device}",
        "llm_dpzero_mezo_full",
        Work(24 * 60, float32=24 * 4 * 0.355e-3 * 64 * 40 * 10_000),
        memory_gib=12,
        parts=24 * 20,
        needs=("model", "data"),
    ),
)
