"""Check by arithmetic what the paper's text and captions say about its own tables. A threshold stands for each word
such as 'considerable'; epsilon = 6 and 2 are the paper's two budgets."""

import math
from collections.abc import Callable

import numpy as np

from paper_checks.checks.instances import Array
from paper_checks.registry import Finding, check
from paper_checks.tables import fact, load, printed, row

_SLACK = 1e-9


def _roberta(name: str) -> Array:
    return row("tab:dpzero-mezo", name)


def _opt(name: str) -> Array:
    """Return the row of the method `name` in both OPT tables (tab:opt-cls, tab:opt-gen), one after the other: six
    columns of each."""
    return np.concatenate([row("tab:opt-cls", name), row("tab:opt-gen", name)])


def _cost(name: str) -> Array:
    """Return the row of the method `name` in Table tab:dpero-dpgd: seconds per iteration, and memory in MiB."""
    return row("tab:dpero-dpgd", name)


def _drop(printed_as: str, of: Callable[[str], Array], *pairs: tuple[str, str]) -> Finding:
    """Compare the largest drop that the paper prints as `printed_as` with that at epsilon = 6 from each method to the
    private one of its pair, whose rows `of` returns."""
    drops = {e: max(float(np.max(of(a) - of(f"{b} ({e})"))) for a, b in pairs) for e in (6, 2)}
    holds = abs(drops[6] - printed(printed_as)[0]) < _SLACK
    return Finding(holds, numbers={f"largest drop, eps = {e}": v for e, v in drops.items()})


_DROPS = {
    "first-order": ("largest drop, first order", _roberta, ("AdamW", "DP-AdamW"), ("LoRA", "DP-LoRA")),
    "dpzero": ("largest drop, DPZero", _roberta, ("MeZO", "DPZero")),
    "opt": ("largest drop, OPT", _opt, ("MeZO", "DPZero")),
}
for _name, (_printed, _of, *_of_methods) in _DROPS.items():
    check(f"table-drop-{_name}")(lambda full, how=(_printed, _of, *_of_methods): _drop(*how))  # type: ignore[misc]


@check("table-drop-dpzero-any-eps")
def _(full: bool) -> Finding:
    drops = np.concatenate([_roberta("MeZO") - _roberta(f"DPZero ({e})") for e in (6, 2)])
    at_six, stated = float(np.max(drops[:6])), printed("largest drop, DPZero")[0] + _SLACK
    return Finding(
        float(np.max(drops)) <= stated,
        repaired=at_six <= stated,
        numbers={"largest drop over both eps": float(np.max(drops))},
    )


@check("table-gap-smaller")
def _(full: bool) -> Finding:
    smallest = math.inf
    for method in ("AdamW", "LoRA"):
        public = _roberta(method) - _roberta("MeZO")
        for e in (6, 2):
            private = _roberta(f"DP-{method} ({e})") - _roberta(f"DPZero ({e})")
            smallest = min(smallest, float(np.min(public - private)))
    return Finding(smallest > 0, numbers={"smallest reduction of the gap (points)": smallest})


@check("table-mezo-upper")
def _(full: bool) -> Finding:
    margin = min(float(np.min(_roberta("MeZO") - _roberta(f"DPZero ({e})"))) for e in (6, 2))
    above = int(np.sum(_opt("DPZero (6)") > _opt("MeZO")))
    return Finding(
        margin >= 0, numbers={"smallest margin (points)": margin, "OPT cells where DPZero is above MeZO": above}
    )


@check("table-zero-shot-lower")
def _(full: bool) -> Finding:
    names = [k for k in load()["tab:dpzero-mezo"] if not k.endswith("_error") and k not in ("columns", "Zero-Shot")]
    margin = min(float(np.min(_roberta(k) - _roberta("Zero-Shot"))) for k in names)
    margin = min(margin, float(np.min(_opt("DPZero (2)") - _opt("Zero-Shot"))))
    return Finding(margin > 0, numbers={"smallest margin (points)": margin})


@check("table-near-zero-cost")
def _(full: bool) -> Finding:
    extra = _cost("DPZero") / _cost("MeZO") - 1
    numbers = {"extra time": float(extra[0]), "extra memory": float(extra[1])}
    return Finding(bool(np.all(extra <= 0.02)), numbers=numbers)


@check("table-dp-overhead-time")
def _(full: bool) -> Finding:
    extra = [float(_cost(f"DP-{m}")[0] / _cost(m)[0] - 1) for m in ("AdamW", "LoRA")]
    return Finding(min(extra) >= 0.05, numbers={"DP-AdamW": extra[0], "DP-LoRA": extra[1]})


@check("table-dp-overhead-memory")
def _(full: bool) -> Finding:
    extra = [float(_cost(f"DP-{m}")[1] / _cost(m)[1] - 1) for m in ("AdamW", "LoRA")]
    numbers = {"DP-AdamW": extra[0], "DP-LoRA": extra[1]}
    return Finding(min(extra) >= 0.05, repaired=extra[0] >= 0.05, numbers=numbers)


_PAIRS = (
    ("DP-AdamW (li2022large)", "AdamW (li2022large)"),
    ("DP-AdamW (bu2023differentially)", "AdamW (li2022large)"),
    ("DP-AdamW (yu2022differentially)", "AdamW (yu2022differentially)"),
    ("DP-LoRA (li2022large)", "LoRA (li2022large)"),
    ("DP-LoRA (yu2022differentially)", "LoRA (yu2022differentially)"),
)


@check("table-others-overhead")
def _(full: bool) -> Finding:
    ratios = {a: row("tab:others", a)[1:] / row("tab:others", b)[1:] - 1 for a, b in _PAIRS}
    numbers = {f"{a}: time, memory": f"{v[0]:+.1%}, {v[1]:+.1%}" for a, v in ratios.items()}
    everywhere = all(np.all(v >= 0.05) for v in ratios.values())
    full_tuning = all(np.all(v >= 0.05) for a, v in ratios.items() if "LoRA" not in a)
    return Finding(everywhere, repaired=full_tuning, numbers=numbers)


@check("table-others-similar")
def _(full: bool) -> Finding:
    gaps = [float(row("tab:others", a)[0] - row("tab:others", "DPZero")[0]) for a, _ in _PAIRS]
    return Finding(max(map(abs, gaps)) <= 2, numbers={"largest difference (points)": max(gaps, key=abs)})


@check("table-memory-saving")
def _(full: bool) -> Finding:
    factors = [float(row("tab:others", a)[2] / row("tab:others", "DPZero")[2]) for a, _ in _PAIRS]
    return Finding(min(factors) >= 2, numbers={"least factor": min(factors), "largest factor": max(factors)})


@check("table-memory-saving-greater")
def _(full: bool) -> Finding:
    private = [float(_cost(f"DP-{m}")[1] / _cost("DPZero")[1]) for m in ("AdamW", "LoRA")]
    public = [float(_cost(m)[1] / _cost("MeZO")[1]) for m in ("AdamW", "LoRA")]
    numbers = {"AdamW: private, public": f"{private[0]:.2f}, {public[0]:.2f}"}
    numbers["LoRA: private, public"] = f"{private[1]:.2f}, {public[1]:.2f}"
    return Finding(all(a > b for a, b in zip(private, public, strict=True)), numbers=numbers)


@check("table-noise-negligible")
def _(full: bool) -> Finding:
    scores, values = [], []
    for task in ("SST-2", "SST-5"):
        mean, error = row("tab:noise", task), row("tab:noise", f"{task}_error")
        for k in (0, 1):
            values.append(float(mean[k] - mean[k + 2]))
            scores.append(abs(values[-1]) / math.hypot(error[k], error[k + 2]))
    numbers = {"largest difference (points)": max(values, key=abs), "in standard errors": max(scores)}
    return Finding(max(scores) < 2, numbers=numbers)


@check("table-consistent")
def _(full: bool) -> Finding:
    same = np.array_equal(row("tab:noise", "SST-2")[:2], [_roberta(f"DPZero ({e})")[0] for e in (6, 2)])
    same &= np.array_equal(row("tab:noise", "SST-5")[:2], [_roberta(f"DPZero ({e})")[1] for e in (6, 2)])
    pairs = {f"{name} (li2022large)": name for name in ("AdamW", "DP-AdamW", "LoRA", "DP-LoRA")}
    for there, here in {**pairs, "MeZO": "MeZO", "DPZero": "DPZero"}.items():
        same &= np.array_equal(row("tab:others", there)[1:], _cost(here))
        name = f"{here} (2)" if here.startswith("DP") else here
        same &= bool(row("tab:others", there)[0] == _roberta(name)[0])
    same &= bool(_roberta("DPZero (2)")[5] == printed("DPZero on TREC")[0])
    return Finding(bool(same))


@check("table-dpgd0th-trec")
def _(full: bool) -> Finding:
    gap = float(_roberta("DPZero (2)")[5] - printed("DPGD-0th on TREC")[0])
    error = float(_roberta("DPZero (2)_error")[5])
    return Finding(gap > 5 * error, numbers={"difference (points)": gap, "DPZero's standard error": error})


@check("table-iterations")
def _(full: bool) -> Finding:
    more, fewer = printed("iterations, DPZero")[0], printed("iterations, first order")[0]
    total = {"DPZero": more * _cost("DPZero")[0], "DP-AdamW": fewer * _cost("DP-AdamW")[0]}
    total["DP-LoRA"] = fewer * _cost("DP-LoRA")[0]
    numbers = {f"{k}: seconds in all": float(v) for k, v in total.items()}
    return Finding(more > fewer and total["DPZero"] > max(total["DP-AdamW"], total["DP-LoRA"]), numbers=numbers)


@check("table-tang-clip")
def _(full: bool) -> Finding:
    there = printed("clip of the difference")[0] / (2 * printed("smoothing")[0])
    grid, order = printed("clips, DPZero"), math.sqrt(10)
    holds = min(grid) / order <= there <= max(grid) * order
    return Finding(holds, numbers={"threshold in our units": there, "over the least searched": there / min(grid)})


def _mib(parameters: float, bytes_each: float) -> float:
    return parameters * 1e9 * bytes_each / 2**20


@check("table-opt-memory-limit")
def _(full: bool) -> Finding:
    limit = 1024 * printed("memory (GiB)")[0]
    weights = _mib(fact("OPT, 10^9 parameters")[3], fact("half precision, bytes a parameter")[0])
    used, mezo = row("tab:opt-memory", "DPZero"), row("tab:opt-memory", "MeZO")
    fits = bool(np.all(used[:3] > 0) and np.all(used[:3] < limit) and used[3] == 0)
    numbers = {"6.7B (MiB)": float(used[2]), "weights of 13B (MiB)": weights}
    return Finding(fits and limit < weights and np.array_equal(used, mezo), numbers=numbers)


@check("table-opt-scaling")
def _(full: bool) -> Finding:
    worst, worst_two = -math.inf, -math.inf
    for table in ("tab:opt-cls", "tab:opt-gen"):
        for e in (6, 2):
            drop = row(table, "MeZO") - row(table, f"DPZero ({e})")
            error = np.hypot(row(table, "MeZO_error"), row(table, f"DPZero ({e})_error"))
            score = (drop[4:] - drop[:2]) / np.hypot(error[4:], error[:2])
            if e == 6:
                worst = max(worst, float(np.max(score)))
            else:
                worst_two = max(worst_two, float(np.max(score)))
    numbers: dict[str, float | str] = {"largest growth, eps = 6 (standard errors)": worst, "eps = 2": worst_two}
    mean, error = row("tab:opt-cls", "DPZero (2)"), row("tab:opt-cls", "DPZero (2)_error")
    numbers["BoolQ, eps = 2: 2.7B and 6.7B"] = f"{mean[3]} +- {error[3]} and {mean[5]} +- {error[5]}"
    return Finding(worst < 2, numbers=numbers)


@check("table-opt-larger-better")
def _(full: bool) -> Finding:
    gains = []
    for table in ("tab:opt-cls", "tab:opt-gen"):
        for name in ("MeZO", "DPZero (6)", "DPZero (2)"):
            values = row(table, name)
            gains.append(float(np.min(values[4:] - values[:2])))
    return Finding(min(gains) > 0, numbers={"least gain (points)": min(gains)})


@check("table-training-samples")
def _(full: bool) -> Finding:
    counts, wanted = fact("TREC, questions per class"), printed("samples per class")[0]
    n, classes = sum(min(c, wanted) for c in counts), len(counts)
    numbers = {"n for TREC": n, f"{classes} x {wanted:g}": classes * wanted, "fewest of a class": min(counts)}
    short = sum(c < wanted for c in counts)
    repaired = short == 1 and math.isclose(n, (classes - 1) * wanted + min(counts))
    return Finding(short == 0, repaired=repaired, numbers=numbers)


@check("table-test-samples")
def _(full: bool) -> Finding:
    sizes, wanted = fact("labelled evaluation samples"), printed("test samples")[0]
    numbers = {f"{k}: labelled evaluation samples": v for k, v in zip(("SST-2", "RTE", "TREC"), sizes, strict=True)}
    return Finding(min(sizes) >= wanted, repaired=max(sizes) < wanted, numbers=numbers)
