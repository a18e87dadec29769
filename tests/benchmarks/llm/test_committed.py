"""What the page of results says of the committed rows."""

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm import demo, last_norm, last_norm_tasks, only_d, tuned
from benchmarks.llm.top import ADAPTERS


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
        assert "{:.2f} ({:.2f} to {:.2f}) with s = {:g}".format(*found, scale) in _page("language-models")


def test_dp_adamw_is_ahead_as_the_page_says() -> None:
    tasks = _ends("llm_last_norm_tasks", "prompt", "task")
    layer, whole = _ends("llm_last_layer", "trained", "task"), _ends("llm_all_weights")
    gaps = [whole["dp-adamw", "2"] - whole["dpzero", "2"]]
    gaps += [layer[ADAPTERS, name, "dp-adamw", "2"] - layer[ADAPTERS, name, "dpzero", "2"] for name in _SHOWN]
    page = _page("language-models")
    assert f"{gaps[0]:.0f} points more accurate than DPZero on SST-2" in page
    assert "{:.0f}, {:.0f} and {:.0f} points with adapters".format(*gaps[1:]) in page
    for name in _SHOWN[1:]:
        at = {method: tasks["paper", name, *method] for method in last_norm_tasks.METHODS[:-1]}
        assert at["dpzero", "2"] > at["zero-shot", "none"] + 10
        assert at["dpzero", "2"] > at["dp-adamw", "2"]
        assert at["dp-adamw", "6"] > at["dpzero", "6"] + 2
        assert abs(at["dpgd-0th", "2"] - at["zero-shot", "none"]) < 0.5


_SHOWN = ("sst2", "trec", "sst5")


def _ends(folder: str, *by: str) -> dict[tuple[str, ...], float]:
    """The mean test accuracies of the reported runs of a folder, of which no private one spends too much."""
    rows = read_rows(RESULTS / folder)
    private = rows[rows["epsilon_upper"].notna()]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    return {at: end.mean for at, end in tuned.ends(rows, *by, "method", "epsilon").items()}


def _page(name: str) -> str:
    return " ".join((RESULTS.parents[1] / "docs" / "results" / f"{name}.md").read_text().split())
