"""What the paper says of costs and of tuning, checked on committed rows of the language-model and optimizer
benchmarks."""

import math
from itertools import pairwise

from scipy import stats

from benchmarks.kit.rows import RESULTS, having, read_rows
from paper_checks.registry import Finding, check


@check("llm-clip-tradeoff")
def _(full: bool) -> Finding:
    last = having(read_rows(RESULTS / "llm_clip_lr"), step=300).to_dict("records")
    clips, sizes = (sorted({float(row[name]) for row in last}) for name in ("clip", "step_size"))
    holds, numbers = True, dict[str, float | str]()
    for on in ("dev", "test"):
        loss = {(float(row["clip"]), float(row["step_size"])): float(row[f"{on}_loss"]) for row in last}
        best = [min(sizes, key=lambda size, clip=clip, loss=loss: loss[clip, size]) for clip in clips]  # type: ignore[misc]
        least = [min(loss[clip, size] for size in sizes) for clip in clips]
        holds &= all(a >= b for a, b in pairwise(best)) and best[0] >= 3 * best[-1]
        holds &= min(least[0], least[-1]) > min(least) * 1.1
        numbers[f"best step size by clip, {on}"] = ", ".join(
            f"{clip:g}: {size:g}" for clip, size in zip(clips, best, strict=True)
        )
    return Finding(bool(holds), numbers=numbers)


@check("clipping-no-overhead")
def _(full: bool) -> Finding:
    measured = having(read_rows(RESULTS / "optimizer_step"), size="roberta-base").to_dict("records")
    times, memory = [], []
    for row in measured:
        if row["method"] == "private-rademacher":
            times.append(float(row["to_non_private"]) - 1 - 3 * float(row["to_non_private_error"]))
            plain = next(r for r in measured if r["method"] == "rademacher" and r["batch"] == row["batch"])
            memory.append(float(row["peak_to_inference"]) / float(plain["peak_to_inference"]) - 1)
    numbers = {
        "largest extra time, less 3 errors": max(times),
        "largest extra memory": max(memory),
        "pairs": len(times),
    }
    return Finding(len(times) == 3 and max(times) <= 0.02 and max(memory) <= 0.01, numbers=numbers)


@check("typical-norm")
def _(full: bool) -> Finding:
    ratios = {d: math.sqrt(float(stats.beta.median(0.5, (d - 1) / 2))) for d in (100, 10_000)}
    scaled = [ratio * math.sqrt(d) / float(stats.norm.ppf(0.75)) for d, ratio in ratios.items()]
    numbers = {f"median/maximum, d = {d}": ratio for d, ratio in ratios.items()}
    return Finding(max(abs(s - 1) for s in scaled) < 0.01, numbers=numbers)
