"""What the page of results says of the committed rows."""

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm import demo, last_norm, last_norm_tasks, only_d, settings
from benchmarks.llm.grids import table as table_of
from benchmarks.llm.ordering import ordering
from benchmarks.llm.report import best, summary
from benchmarks.summary import ROOT


def test_the_order_of_the_methods_on_average_and_where_it_holds() -> None:
    entry = table_of("tab:dpzero-mezo", "few-steps")
    found = ordering(summary(entry, read_rows(RESULTS / "llm_dpzero_mezo")))
    holds = {name: part["holds"] for name, part in found.groupby("task")}
    assert {name for name, part in holds.items() if part.all()} == {"all", "trec", "sst2", "sst5"}
    assert all(len(part) == 5 for part in holds.values())


def test_every_cell_of_the_accuracy_table_has_three_seeds() -> None:
    entry = table_of("tab:dpzero-mezo", "few-steps")
    lines = summary(entry, read_rows(RESULTS / "llm_dpzero_mezo"))
    assert len(lines) == len(entry.rows) * len(entry.tasks)
    assert (lines["seeds"] == 3).all()


def test_the_demos_clip_and_step_size_are_the_best_on_dev() -> None:
    grid = demo.grid()
    assert len(grid) == 6
    assert grid[best(read_rows(RESULTS / "llm_demo_choice"), [grid])] == demo.recipe()


def test_a_language_model_gains_twenty_points_privately() -> None:
    """In every reported run at epsilon = 2, also with as many records as in the paper."""
    rows = read_rows(RESULTS / "llm_last_norm")
    assert (
        last_norm.STEP_SIZES["dpzero", 4096][settings.best(rows, method="dpzero", n=4096, step=last_norm.STEPS)]
        == demo.LARGE_STEP_SIZE
    )
    ends = rows[(rows["setting"].astype(str) == last_norm.CHOSEN) & (rows["step"] == last_norm.STEPS)]
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


def test_dpzero_beats_zero_shot_and_dp_adamw_does_not_beat_it_at_epsilon_two() -> None:
    """On TREC and SST-5 by the paper's prompt, with the last normalisation trained; DPGD-0th gains nothing."""
    rows = read_rows(RESULTS / "llm_last_norm_tasks")
    private = rows[rows["epsilon"].astype(str) != "none"]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    found = last_norm_tasks.ends(rows)
    for name in ("trec", "sst5"):
        ends = {method: found[name, "paper", *method] for method in last_norm_tasks.METHODS[:-1]}
        start, ours, theirs = (ends[key] for key in (("zero-shot", "none"), ("dpzero", "2"), ("dp-adamw", "2")))
        assert all(end.runs == 3 for method, end in ends.items() if method[0] != "zero-shot")
        assert ours.mean - ours.half > start.mean + 10
        assert ours.mean > theirs.mean
        assert ends["dp-adamw", "6"].mean > ends["dpzero", "6"].mean + 2
        assert abs(ends["dpgd-0th", "2"].mean - start.mean) < 0.5


def test_larger_clips_want_smaller_step_sizes() -> None:
    """The paper's fig:clip_lr: the step size with the smallest test loss does not grow with the clip."""
    rows = read_rows(RESULTS / "llm_clip_lr").dropna(subset="test_loss")
    grid = rows.pivot(index="clip", columns="step_size", values="test_loss")
    steps = grid.idxmin(axis=1)
    assert steps.is_monotonic_decreasing
    assert steps.iloc[0] > steps.iloc[-1]
    assert grid.min(axis=1).idxmin() == 30.0


def test_the_summary_that_the_figure_shows_is_that_of_the_rows() -> None:
    committed = read_rows(RESULTS / "llm_dpzero_mezo_summary").drop(columns="status")
    lines = summary(table_of("tab:dpzero-mezo", "few-steps"), read_rows(RESULTS / "llm_dpzero_mezo"))
    pd.testing.assert_frame_equal(committed, lines, check_dtype=False, atol=1e-9)


def test_no_private_method_answers_the_prompts_of_a_small_opt() -> None:
    lines = summary(table_of("tab:opt-cls", "few-steps"), read_rows(RESULTS / "llm_opt_cls")).set_index("row")["mean"]
    page = (ROOT / "docs" / "results" / "small-models.md").read_text()
    notes = (RESULTS / "llm_opt_cls" / "NOTES.md").read_text()
    assert f"AdamW reaches {lines['AdamW']:.1f}%" in page
    assert f"{lines.drop('AdamW').max():.1f}% at most" in page
    assert f"{lines['DP-AdamW (6)']:.1f}% great and {lines['Zero-Shot']:.1f}% terrible" in notes
