"""What the paper says of costs and of tuning, checked on committed rows of the language-model and optimizer
benchmarks."""

import math
from itertools import pairwise

from scipy import stats

from paper_checks import rows
from paper_checks.registry import Finding, Plot, check


@check("llm-clip-tradeoff")
def _(full: bool) -> Finding:
    """Figure fig:clip_lr, 'larger clipping needs smaller step sizes': the step size with the least loss falls as the
    clip grows, on the development and on the test records.

    The rows are 6 clips by 4 step sizes on TREC at epsilon = 2, one seed, loss after the last step. Stated: the best
    step size never rises from one clip to the next larger one, falls at least threefold from the smallest clip to
    the largest, and the least loss lies at neither of these two clips.
    """
    last = [row for row in rows.read("llm_clip_lr") if row["step"] == "300"]
    clips, sizes = (sorted({float(row[name]) for row in last}) for name in ("clip", "step_size"))
    holds, numbers, series = True, dict[str, float | str](), {}
    for on in ("dev", "test"):
        loss = {(float(row["clip"]), float(row["step_size"])): float(row[f"{on}_loss"]) for row in last}
        best = [min(sizes, key=lambda size, clip=clip, loss=loss: loss[clip, size]) for clip in clips]  # type: ignore[misc]
        least = [min(loss[clip, size] for size in sizes) for clip in clips]
        holds &= all(a >= b for a, b in pairwise(best)) and best[0] >= 3 * best[-1]
        holds &= min(least[0], least[-1]) > min(least) * 1.1
        numbers[f"best step size by clip, {on}"] = ", ".join(
            f"{clip:g}: {size:g}" for clip, size in zip(clips, best, strict=True)
        )
        series[f"{on} loss at the best step size"] = (clips, least)
    plot = Plot("loss against clip, TREC, epsilon = 2", "clip", "loss", series, log_x=True)
    return Finding(bool(holds), numbers=numbers, plot=plot)


@check("clipping-no-overhead")
def _(full: bool) -> Finding:
    """The remark rmk:clipping says that DPZero's clipping costs no memory or time. Compared are the processor time and
    the peak memory of a private step with those of the same step without clipping and noise.

    The rows are steps of RoBERTa-base (125M weights) with batches of 1, 8 and 64 on one thread. Stated: at most 2%
    more time, up to three standard errors, and at most 1% more memory.
    """
    measured = [row for row in rows.read("optimizer_step") if row["size"] == "roberta-base"]
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
    """The paper's introduction says that the typical norm of the estimated gradient g is much smaller than its maximum
    L d. For a linear loss the median of |g| over that maximum falls as 0.67/sqrt(d): it is 15 times smaller at d = 100
    and 150 times at d = 1e4.

    For a linear loss |g| = L |u_1| sqrt(d), where u_1^2/d has the law Beta(1/2, (d - 1)/2). Its median is within 1%
    of that of a normal number (0.6745) at both d.
    """
    ratios = {d: math.sqrt(float(stats.beta.median(0.5, (d - 1) / 2))) for d in (100, 10_000)}
    scaled = [ratio * math.sqrt(d) / float(stats.norm.ppf(0.75)) for d, ratio in ratios.items()]
    numbers = {f"median/maximum, d = {d}": ratio for d, ratio in ratios.items()}
    return Finding(max(abs(s - 1) for s in scaled) < 0.01, numbers=numbers)
