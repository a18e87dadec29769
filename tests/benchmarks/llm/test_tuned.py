"""What is trained, on which task, by which method, on a tiny model in the pretrained one's place; committed rows."""

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.kit.rows import RESULTS, read_manifest, read_rows
from benchmarks.llm import (
    demo,
    directions_total,
    last_layer,
    last_norm,
    last_norm_tasks,
    many_directions,
    only_d,
    tuned,
)
from benchmarks.llm.top import ADAPTERS, LAYER, NORM, TRAINED, WHOLE, Records, Top
from benchmarks.llm.tuned import CHOSEN, best, clipped, ends
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests.benchmarks.llm.tiny import in_its_place, llama, phrases

pytest.importorskip("transformers", reason="the hf extra is not installed")

TYPES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
WEIGHTS = {**TRAINED, WHOLE: TRAINED[WHOLE]._replace(layers=2)}
SMALL: dict[Any, dict[str, Any]] = {
    last_norm: {
        "LARGE": 32, "SMALL": 16, "BATCHES": {32: 12, 16: 6}, "STEPS": 6, "SHOWN": (0, 3, 6), "DEV": 10, "TEST": 10,
        "DIRECTIONS": 4, "LENGTH": 24,
        "RUNS": (("zero-shot", "none", 32), ("dpzero", "2", 32), ("mezo", "none", 32), ("adamw", "none", 16)),
        "STEP_SIZES": {("zero-shot", 32): (0.0,), ("dpzero", 32): (0.3,), ("mezo", 32): (0.5,),
                       ("adamw", 16): (0.0, 0.3)},
    },
    last_norm_tasks: {
        "STEPS": 3, "RATES": (0.01,), "SCALES": {"dpzero": (0.0, 0.1), "mezo": (0.1,), "dpgd-0th": (0.01,)},
        "SIZES": {"trec": last_norm_tasks.Size(24, 10, 10, 48)}, "DIRECTIONS": 4,
        "PROMPTS": {"trec": dict.fromkeys(("paper", "better"), last_norm_tasks.PROMPTS["trec"]["paper"])},
    },
    directions_total: {
        "N": 24, "SPLITS": {8: ((4, 2), (1, 8))}, "SCALES": (0.1,), "STEPS": (3,),
        "RATES": {"adamw": (0.01, 0.03), "dp-adamw": (0.01, 0.03)},
    },
    last_layer: {
        "SIZES": dict.fromkeys(last_layer.SIZES, last_layer.Size(2, 8)), "MANY_DIRECTIONS": 3,
        "TASKS": {"sst2": last_layer.Sizes(24, 8, 10, 20, 24)},
        "DIRECTIONS": dict.fromkeys(last_layer.WEIGHTS, 2),
    },
    many_directions: {
        "K": 2, "BATCH": 8, "ADAMW_BATCH": 8, "STEPS": 3, "TRIAL": 2, "SHOWN": (2, 3),
        "SETTINGS": {"dpzero": ((1.0, 0.1), (0.3, 0.3)), "dp-adamw": ((1, 1e-3),)},
    },
    only_d: {
        "N": 24, "HELD_OUT": 8, "STEPS": 4, "BATCH": 12, "LENGTH": 20, "DROP": 1e-4, "SCALES": (0.01, 0.1),
        "TRAINED": {name: WEIGHTS[name] for name in (NORM, ADAPTERS, LAYER, WHOLE)},
    },
}  # fmt: skip
"""The sizes of the experiments in small."""
SETTING = ["k", "steps", "scale"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiments in small, and a folder of data."""
    in_its_place(monkeypatch, tmp_path)
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    lines = [f"{TYPES[i % 6]}:x {'abcdef'[i % 6]} it is {i} ?" for i in range(600)]
    (tmp_path / "trec_train.label").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return phrases(tmp_path)


def run(experiment: Any, small: Path, *words: str) -> pd.DataFrame:
    """Returns the rows of an experiment that is run twice, of which the second time measures nothing. A run leaves the
    model's weights as they are, no run spends more than its epsilon, and the best setting is reported."""
    weights = [p.clone() for p in llama().module.parameters()]
    command = [f"--data={small}", f"--out={small / 'rows'}", *words]
    assert experiment.main(command) == 0
    before = (small / "rows" / "rows.csv").read_bytes()
    assert experiment.main(command) == 0
    assert (small / "rows" / "rows.csv").read_bytes() == before
    assert all(map(torch.equal, weights, Records(*_asked("sst2")).model.module.parameters()))
    rows = read_rows(small / "rows").astype({"setting": str})
    if "epsilon" in rows and "epsilon_upper" in rows:
        private = rows[rows["epsilon_upper"].notna()]
        of = private["epsilon"].astype(float)
        assert (private["epsilon_upper"] <= of).all()
        assert (private["epsilon_upper"] > 0.9 * of).all()
    return rows


def _asked(name: str) -> tuple[Any, int]:
    return (last_norm.task("sst2"), 24) if name == "sst2" else (last_norm_tasks.asked(name, "paper"), 48)


def test_one_task_along_the_runs(small: Path) -> None:
    rows = run(last_norm.EXPERIMENT, small, "--seeds=2")
    assert len(rows) == 1 + 3 * (2 + 2 + 2 + 2)  # AdamW's two settings, then two runs of each of the three methods
    chosen = rows[(rows["method"] == "adamw") & (rows["setting"] == CHOSEN)]
    assert (chosen["step_size"] == (0.0, 0.3)[best(rows, method="adamw", n=16, step=6)]).all()
    assert (rows["d"] == 16).all()
    assert rows[rows["step"] == 0]["test_loss"].nunique() == 1  # every run starts from the same weights
    assert rows[rows["step"] == 6]["test_loss"].nunique() > 4


def test_every_method_on_a_task(small: Path) -> None:
    rows = run(last_norm_tasks.EXPERIMENT, small, "--tasks=trec", "--prompts=paper", "--seeds=1")
    chosen = rows[rows["setting"] == CHOSEN]
    assert sorted(zip(chosen["method"], chosen["epsilon"].astype(str), strict=True)) == sorted(last_norm_tasks.METHODS)
    assert set(chosen[chosen["epsilon_upper"].notna()]["method"]) == {"dpzero", "dp-adamw", "dpgd-0th"}
    assert chosen[chosen["method"] != "few-shot"]["test_loss"].nunique() >= 6
    number = best(rows, task="trec", prompt="paper", method="dpzero")
    assert (chosen[chosen["method"] == "dpzero"]["scale"] == (0.0, 0.1)[number]).all()
    assert "| TREC | paper |" in last_norm_tasks.table(rows)


def test_every_choice_of_weights(small: Path) -> None:
    rows = run(last_layer.EXPERIMENT, small, "--seeds=2", "--tasks", "sst2").astype({"epsilon": str})
    assert len(rows) == 1 + 3 * ((2 + 4) + 2 + (2 + 2) + (2 + 4))
    for name in last_layer.WEIGHTS:
        mine = rows[(rows["trained"] == name) & (rows["method"] == "dp-adamw")]
        number = best(rows, trained=name, method="dp-adamw")
        assert (mine[mine["setting"] == CHOSEN]["scale"] == last_layer.RATES[name, "dp-adamw"][number]).all()
        assert mine["test_loss"].nunique() > 3
    assert set(rows[rows["seed"] == 0]["epsilon"]) == {"2", "none"}  # settings are chosen at epsilon = 2
    assert last_layer.table(rows).count("\n") == 1 + 4


def test_points_in_one_pass_have_the_losses_of_moved_weights(small: Path) -> None:
    work = last_norm.prepared(small, "cpu")
    top = work.top(TRAINED[WHOLE]._replace(layers=work.layers))
    weights, rows, smoothing = Weights(top, Directions(7, "low-rank")), torch.arange(5), 1e-2
    batch = work.states(top.count)["train"][rows]
    points, ask = [(0, 0.0), (0, smoothing), (1, smoothing)], partial(many_directions.losses, work.asked(batch))
    found = torch.stack(weights.evaluated(points, ask, 3, 5))
    with torch.no_grad():
        moved = [work.losses(top, batch)]
        for number in range(2):
            weights.move_([(number, smoothing)])
            moved.append(work.losses(top, batch))
            weights.move_([(number, -smoothing)])
    assert torch.allclose(found, torch.stack(moved), atol=1e-5)
    assert (found[1:] - found[0]).abs().min() > 1e-5


def test_directions_in_all(small: Path) -> None:
    """Of two ways to split K T, the one that is better on dev records is reported; tables have a line for each."""
    rows = run(directions_total.EXPERIMENT, small, "--tasks=trec", "--epsilons=2", "--seeds=2")
    chosen = rows[rows["setting"] == CHOSEN]
    assert sorted(chosen["method"]) == sorted([*["adamw", "dp-adamw", "dpzero"] * 2, "zero-shot"])
    tried = rows[(rows["method"] == "dpzero") & (rows["setting"] != CHOSEN)]
    assert {(1, 8), (4, 2)} <= set(zip(tried["k"], tried["steps"], strict=True))
    assert_reported_as_chosen(rows)
    assert "| TREC | 2 |" in directions_total.table(rows)
    assert "| 8 | 4 | 2 |" in directions_total.splits_table(rows)
    more = run(directions_total.EXPERIMENT, small, "--tasks=trec", "--epsilons=2", "--seeds=2", "--geodpzo")
    assert len(more[more["method"] == "geodpzo"]) >= 4
    assert len(more) > len(rows)
    assert "| TREC | 2 | 8 |" in directions_total.rules_table(more)
    out, words = small / "shaped", ["--shaped", "--tasks=trec", "--epsilons=2", "--seeds=2"]
    assert directions_total.EXPERIMENT.main([f"--data={small}", f"--out={out}", *words]) == 0
    assert set(read_rows(out)["method"]) == {"shaped", "zero-shot"}
    assert directions_total.shaped_table(rows, read_rows(out), rows).splitlines()[-1].startswith("| TREC | 2 | 8 | ")


def assert_reported_as_chosen(rows: pd.DataFrame) -> None:
    """Reported runs have the setting of the best trial run, and that is at no edge of what was tried."""
    for _, part in rows.groupby(list(directions_total.BY)):
        tried, found = part[part["seed"] == 0], part[part["seed"] != 0]
        if len(tried) and len(found):
            assert directions_total.beyond(tried) is None
            best = tried.loc[tried["dev_accuracy"].idxmax()]
            assert len(set(map(tuple, [best[SETTING], *found[SETTING].to_numpy()]))) == 1


def test_beyond_the_grid() -> None:
    """At an edge a third, or three times, of the step size is next; then, with gradients, four times the steps."""
    grid = [(16, 250, 1.0), (16, 250, 3.0), (4, 1000, 1.0), (4, 1000, 3.0)]
    for accuracy, expected in {(7, 6, 5, 5): (16, 250, 0.333), (6, 6, 5, 7): (4, 1000, 9.0)}.items():
        tried = pd.DataFrame(grid, columns=SETTING).assign(dev_accuracy=accuracy)
        assert directions_total.beyond(tried) == expected
    inside = pd.DataFrame([*grid, (4, 1000, 9.0)], columns=SETTING).assign(dev_accuracy=(6, 6, 5, 7, 6))
    assert directions_total.beyond(inside) is None
    assert directions_total.beyond(inside.assign(k=0)) == (0, 4000, 1.0)
    assert directions_total.beyond(inside.assign(k=0, dev_accuracy=(6, 7, 5, 6, 7))) == (0, 250, 9.0)


def test_many_directions(small: Path) -> None:
    rows = run(many_directions.EXPERIMENT, small, "--seeds=1", "--device=cpu").set_index(["method", "setting"])
    assert len(rows) == 2 + 3
    assert (rows.loc[("dpzero", CHOSEN), "noise_multiplier"] > 0).all()


@pytest.mark.parametrize("of", [last_norm, last_norm_tasks, last_layer, many_directions])
def test_committed_rows_can_be_added_to(of: Any) -> None:
    """Their columns, their key and their settings are those of today's experiment."""
    experiment, folder = of.EXPERIMENT, RESULTS / str(of.EXPERIMENT.folder)
    found = read_manifest(folder)
    assert tuple(found["key"]) == tuple(experiment.key)
    assert list(read_rows(folder).columns) == [*experiment.key, *experiment.fields, "status"]
    assert {name: str(value) for name, value in found["settings"].items()} == {
        name: str(value) for name, value in experiment.settings.items()
    }


def _moved(work: Records, name: str) -> Top:
    """The model's last layers with other weights than at the start, so that the adapters' factor B is not 0."""
    top = work.top(WEIGHTS[name], usual=True)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in top.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    return top


@pytest.mark.parametrize("name", [NORM, ADAPTERS, LAYER, WHOLE])
def test_the_clipped_sum_is_that_of_one_record_at_a_time(small: Path, name: str) -> None:
    """Also where an answer's token, of which the output matrix has the row of the embedding, stands in the text."""
    work = last_layer.prepared(small, "sst2")
    top = _moved(work, name)
    weights = [p for p in top.parameters() if p.requires_grad]
    states = work.states(top.count)["train"]
    if name == WHOLE:
        states.tensors[0][3, 1:3] = work.options[1]
    batch, rows = states[torch.arange(7)], []
    for index in range(7):
        loss = work.losses(top, {key: value[index : index + 1] for key, value in batch.items()})
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), weights)]))
    norms = torch.stack([row.norm() for row in rows])
    clip = float(norms.median())
    assert norms.min() < clip < norms.max()
    expected = sum(row * min(1.0, clip / float(row.norm())) for row in rows)
    for at_once in (0, 3):
        found = torch.cat([g.flatten() for g in clipped(top, work.losses, batch, clip, at_once)])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not any(total.any() for total in clipped(top, work.losses, states[torch.arange(0)], clip))


@pytest.mark.parametrize("name", [NORM, ADAPTERS, LAYER, WHOLE])
def test_the_accuracy_and_the_loss_are_the_whole_models(small: Path, name: str) -> None:
    work, whole = last_layer.prepared(small, "sst2"), llama().module
    scores, wanted = [], []
    for record in work._rows["test"]:
        count = int((record["labels"] >= 0).nonzero()[0])
        with torch.no_grad():
            scores.append(whole(record["input_ids"][None, :count]).logits[0, -1, list(work.options)])
        wanted.append(work.options.index(int(record["labels"][count])))
    rows, right = torch.stack(scores), torch.tensor(wanted)
    accuracy, loss = work.evaluated(work.top(WEIGHTS[name]), "test")
    assert accuracy == pytest.approx(float((rows.argmax(1) == right).float().mean()))
    assert loss == pytest.approx(float(cross_entropy(rows, right)), rel=1e-5)


def test_the_examples_stand_before_every_prompt_with_their_answers(small: Path) -> None:
    """The loss of a test record is that of the whole model on the text with six answered questions before it."""
    work = last_norm_tasks.prepared("trec", "paper", small, examples=True)
    records, whole = last_norm_tasks.texts("trec", small, last_norm_tasks.SIZES["trec"]), llama()
    first = {record.label: record for record in reversed(records["train"])}
    ids: list[int] = []
    for label in range(6):
        question = whole.tokenizer(f"{first[label].texts['text']} Type:")["input_ids"]
        ids += [*question, work.options[label], *whole.tokenizer("\n\n", add_special_tokens=False)["input_ids"]]
    ids += whole.tokenizer(f"{records['test'][0].texts['text']} Type:")["input_ids"]
    with torch.no_grad():
        scores = whole.module(torch.tensor([ids])).logits[0, -1, list(work.options)]
    expected = cross_entropy(scores[None], torch.tensor([records["test"][0].label]))
    found = work.losses(work.top(TRAINED[NORM]), work.states(0)["test"][torch.arange(1)])
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_the_order_of_the_methods_is_told_with_intervals() -> None:
    accuracies = {"zero-shot": (0.5,), "dpzero": (0.6, 0.62), "mezo": (0.4, 0.42), "adamw": (0.8, 0.8)}
    rows = pd.DataFrame([
        {"task": "trec", "method": method, "epsilon": epsilon, "setting": CHOSEN, "seed": seed,
         "test_accuracy": accuracy}
        for method, values in accuracies.items() for epsilon in (("2", "6") if method == "dpzero" else ("none",))
        for seed, accuracy in enumerate(values)
    ])  # fmt: skip
    found = ends(rows, "task", "method", "epsilon")
    told = tuned.order(found, ["task"])
    assert "| trec | +11.0 +- 12.7, open | +0.0 +- 18.0, open | -20.0 +- 18.0, fails | +39.0 +- 12.7, holds |" in told
    assert "| trec | 61.0 +- 12.7 | - |" in tuned.table(found, ["task"], [("dpzero", "2"), ("few-shot", "none")])


def test_the_demo_prints_accuracy_answers_and_privacy(
    small: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "made", lambda name: small)
    assert demo.EXPERIMENT.main([f"--data={small}"]) == 0
    told = capsys.readouterr().out
    assert "% of the test sentences right" in told
    assert "after 6 private steps on 16 weights: " in told
    assert told.count("It was ...") == 5
    assert "add-remove (neighbours differ by one record more or less" in told
    assert re.search(r"What was released is \((1\.9\d*|2), 1e-05\)-differentially private", told)


def test_only_d_varies(small: Path) -> None:
    only_d.EXPERIMENT.main([f"--data={small}", "--seeds=2", f"--out={small / 'rows'}", "--trained", *only_d.TRAINED])
    rows = read_rows(small / "rows")
    layer = 16 * 16 * 2 + 16 * 8 * 2 + 16 * 24 * 3 + 2 * 16
    whole = sum(p.numel() for p in llama().module.parameters())
    assert sorted(set(rows["d"])) == [16, 8 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3), layer + 16, whole]
    assert len(rows) == 4 * 2 * 2
    assert (rows["epsilon_upper"] <= 2).all()
    reached = rows["steps"].notna()
    assert ((rows["loss_before"] - rows["loss_after"] >= 1e-4) == reached).all()
    assert (rows["steps_made"][~reached] == only_d.STEPS).all()


def test_the_table_has_means_of_logarithms_and_the_slope() -> None:
    cells = [(576, 10.0), (576, 40.0), (57600, 20.0), (57600, 80.0)]
    rows = pd.DataFrame([
        {"trained": f"w{d}", "scale": 0.1, "seed": 1 + index % 2, "d": d, "gradient_norm": 1.5, "steps": steps}
        for index, (d, steps) in enumerate(cells)
    ])  # fmt: skip
    told = only_d.table(rows)
    assert "| w576 | 576 | - | - | 1.5 | 20 (" in told
    slope = math.log(2) / math.log(100)  # residuals of log steps are +-log 2, so its error is log 2 sqrt(2)/log 100
    half = 4.302653 * math.log(2) * math.sqrt(2) / math.log(100)
    assert only_d.fitted(rows, 0.1) == pytest.approx((slope, slope - half, slope + half))
    assert "with s = 0.1: 0.15 (-0.77 to 1.07)." in told
    rows.loc[3, "steps"] = math.nan
    assert f"1 of 2 runs within {only_d.STEPS}" in only_d.table(rows)
    assert only_d.fitted(rows, 0.1) is None


def test_a_language_model_gains_twenty_points_privately() -> None:
    """In every reported run at epsilon = 2, also with as many records as in the paper."""
    rows = read_rows(RESULTS / "llm_last_norm")
    assert (
        last_norm.STEP_SIZES["dpzero", 4096][tuned.best(rows, method="dpzero", n=4096, step=last_norm.STEPS)]
        == demo.STEP_SIZE
    )
    ends = rows[(rows["setting"].astype(str) == tuned.CHOSEN) & (rows["step"] == last_norm.STEPS)]
    before = rows[rows["method"] == "zero-shot"]["test_accuracy"].iloc[0]
    private = ends[ends["method"] == "dpzero"]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    for (_, epsilon), runs in private.groupby(["n", "epsilon"]):
        assert len(runs) >= (5 if str(epsilon) == "2" else 3)
        assert (runs["test_accuracy"] - before >= 0.2).all()


def test_the_steps_of_dpzero_do_not_go_with_d_over_five_orders_of_magnitude() -> None:
    """The 95% intervals of the slopes contain 0 and are below 1/8, and every run reached the target."""
    rows = only_d.committed()
    assert rows["d"].max() >= 1e5 * rows["d"].min()
    assert (rows["epsilon_upper"] <= 2).all()
    assert (rows.groupby(["trained", "scale"]).size() >= 4).all()
    for scale in only_d.SCALES:
        found = only_d.fitted(rows, scale)
        assert found is not None
        assert found[1] < 0 < found[2] < 0.125
        assert "{:.2f} ({:.2f} to {:.2f}) with s = {:g}".format(*found, scale) in _page("dimension")


def test_dp_adamw_is_ahead_where_the_page_says() -> None:
    layer, whole = _ends("llm_last_layer", "trained", "task"), _ends("llm_all_weights")
    gaps = [whole["dp-adamw", "2"] - whole["dpzero", "2"]]
    gaps += [layer[ADAPTERS, name, "dp-adamw", "2"] - layer[ADAPTERS, name, "dpzero", "2"] for name in _SHOWN]
    page = _page("language-models")
    assert f"300 directions it is {gaps[0]:.0f} points behind" in page
    assert "2,400 directions {:.0f}, {:.0f} and {:.0f} points".format(*gaps[1:]) in page
    more = layer[ADAPTERS, "trec", "dp-adamw", "2"] - layer[ADAPTERS, "trec", last_layer.MANY, "2"]
    assert f"with 16,000 in one run on TREC {more:.0f} points" in page


def test_dpzero_is_level_with_dp_adamw_where_the_page_says() -> None:
    """Level: the 95% interval of the difference of two means of five runs contains 0."""
    rows = read_rows(RESULTS / "llm_directions_total")
    private = rows[rows["epsilon_upper"].notna()]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    found = directions_total.ends(rows)
    for name in _SHOWN:
        for epsilon, directions in LEVEL:
            ours, theirs = found[name, "dpzero", epsilon, str(directions)], found[name, "dp-adamw", epsilon, "0"]
            assert ours.runs == theirs.runs == 5
            assert abs(ours.mean - theirs.mean) <= math.hypot(ours.half, theirs.half)


_SHOWN = ("sst2", "trec", "sst5")
LEVEL = [("2", 16_000), ("2", 64_000), ("2", 256_000), ("6", 64_000)]
LEVEL += [("0.5", directions) for directions in (1_000, 4_000, 16_000, 64_000)]


def _ends(folder: str, *by: str) -> dict[tuple[str, ...], float]:
    """The mean test accuracies of the reported runs of a folder, of which no private one spends too much."""
    rows = read_rows(RESULTS / folder)
    private = rows[rows["epsilon_upper"].notna()]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    return {at: end.mean for at, end in tuned.ends(rows, *by, "method", "epsilon").items()}


def _page(name: str) -> str:
    return " ".join((RESULTS.parents[1] / "docs" / "results" / f"{name}.md").read_text().split())
