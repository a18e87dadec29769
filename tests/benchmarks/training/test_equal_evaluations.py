import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.training import equal_evaluations, equal_tasks
from benchmarks.training.equal_evaluations import (
    CELL,
    CHOOSING,
    EXPERIMENT,
    KS,
    REPORTED,
    Variant,
    alpha_of,
    chosen,
    committed,
    gains,
    grid,
    grown,
    plain,
    reported,
)
from benchmarks.training.equal_tasks import digits

NOTES = "benchmarks/results/equal_evaluations/NOTES.md"
"""The page of what each task says, from the root."""


@pytest.fixture(scope="module", autouse=True)
def small() -> None:
    digits(None)  # The digits are read once, before anything is timed


def test_settings_are_chosen_on_other_seeds_and_records_than_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equal_tasks, "STEP_SIZES", (0.01, 0.1))
    monkeypatch.setitem(
        equal_evaluations.PRESETS,
        "smoke",
        equal_evaluations.Comparison({"digits": (8,)}, (Variant(1), Variant(4, "momentum:0.9", 0.1, "linear"))),
    )
    assert EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path)]) == 0
    rows = read_rows(tmp_path)
    assert set(rows["steps"]) == {8, 2}
    assert rows.groupby("directions")["noise_multiplier"].nunique().eq(1).all()
    for _, part in rows.groupby("directions"):
        assert len(part) >= 2 * 4 * len(CHOOSING) + len(REPORTED)
        means = part[part["seed"].isin(CHOOSING)].groupby(["step_size", "clip"])["chosen_by"].mean()
        reported = part[part["seed"].isin(REPORTED)]
        assert reported[["step_size", "clip"]].drop_duplicates().shape[0] == 1
        at = reported[["step_size", "clip"]].iloc[0]
        assert means[tuple(at)] == means.max()
        # The best setting is not on an edge of the grid of settings, unless one inside is as good.
        for name in ("step_size", "clip"):
            inside = part[(part[name] > part[name].min()) & (part[name] < part[name].max())]
            assert at[name] in set(inside[name]) or part[name].nunique() < 3
    # All rows are there already, so that nothing is measured.
    assert EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path)]) == 0
    assert read_rows(tmp_path).equals(rows)
    last = capsys.readouterr().out.splitlines()[-3:-1]
    values = 100 * rows[rows["seed"].isin(REPORTED) & (rows["directions"] == 4)]["accuracy"]
    assert f"{values.mean():.1f} +- {values.std(ddof=1) / np.sqrt(5):.1f}" in last[-1]


def test_every_k_has_the_same_privacy_evaluations_and_grid() -> None:
    one, many = grid(Variant(1), 64, 500), grid(Variant(16), 64, 500)
    assert {plan.epsilon(1e-5).upper <= 2.0 for plan in (one[0], many[0])} == {True}
    assert {plan.steps * plan.directions_per_step for plan in (*one, *many)} == {64}
    assert [alpha_of(plan) for plan in one] == [alpha_of(plan) for plan in many]
    assert [4 * plan.clip for plan in one] == pytest.approx([plan.clip for plan in many])


def rows_of(k: int, chosen_by: dict[tuple[float, float], float], reported: list[float]) -> pd.DataFrame:
    """Returns the rows of one cell with K = `k` directions in a step.

    `chosen_by` has the accuracy of each setting (step size, clip) on the seeds on which settings are chosen, and
    `reported` the accuracies of the best one on the seeds on which it is reported.
    """
    at = {
        "task": "t",
        "evaluations": 8,
        "directions": k,
        "update": "plain",
        "weight_decay": 0.0,
        "schedule": "constant",
    }
    rows = [
        {**at, "step_size": a, "clip": c, "seed": seed, "chosen_by": value, "accuracy": 0.99}
        for (a, c), value in chosen_by.items()
        for seed in CHOOSING
    ]
    a, c = max(chosen_by, key=lambda setting: chosen_by[setting])
    rows += [
        {**at, "step_size": a, "clip": c, "seed": seed, "chosen_by": 0.0, "accuracy": value}
        for seed, value in zip(REPORTED, reported, strict=True)
    ]
    return pd.DataFrame(rows)


def test_k_is_chosen_where_settings_are_and_its_gain_is_of_the_reported_seeds() -> None:
    one = rows_of(1, {(1.0, 1.0): 0.5, (2.0, 1.0): 0.7}, [0.5, 0.5, 0.5, 0.5, 0.6])
    four = rows_of(4, {(1.0, 2.0): 0.8, (2.0, 2.0): 0.7}, [0.6, 0.6, 0.6, 0.6, 0.7])
    # The setting in these rows is better only on the reported seeds, by which nothing is chosen.
    better = rows_of(16, {(1.0, 4.0): 0.75}, [0.9] * 5)
    gain = gains(pd.concat([one, four, better]))["t", 8]
    assert gain.directions == 4
    assert gain.chosen == pytest.approx((10.0, np.sqrt(2 * 20 / 5)))
    assert gain.between == pytest.approx((62 / 2 + 90 / 2 - 52, np.sqrt(20 / 5 / 4 + 20 / 5)))


def test_every_reported_row_is_of_the_setting_that_was_chosen() -> None:
    """Every reported row is of the setting that was chosen on other seeds, and no choice is on the edge of the grid.

    So the figure, which draws all rows of the reported seeds, draws no others.
    """
    rows = committed()
    assert len(reported(plain(rows))) == plain(rows)["seed"].isin(REPORTED).sum()
    assert (reported(rows).groupby(list(CELL)).size() == len(REPORTED)).all()
    for _, cell in rows.groupby(list(CELL)):
        alpha, clip, _ = chosen(cell)
        assert cell["step_size"].min() < alpha < cell["step_size"].max()
        assert cell["clip"].min() < clip < cell["clip"].max()


def test_a_grid_grows_beyond_an_end_that_the_best_lies_on() -> None:
    assert grown((0.5, 1.0, 2.0, 4.0), 4.0) == (0.5, 1.0, 2.0, 4.0, 8.0)
    assert grown((0.001, 0.003, 0.01), 0.001) == (0.00033, 0.001, 0.003, 0.01)
    assert grown((0.5, 1.0, 2.0, 4.0), 2.0) == (0.5, 1.0, 2.0, 4.0)
    equal = {(float(a), float(c)): 0.5 for a in range(3) for c in range(3)}
    assert chosen(rows_of(1, equal, [0.5] * 5))[:2] == (1.0, 1.0)


def test_the_verdict_is_of_the_rows() -> None:
    shown, started = reported(plain(read_rows(RESULTS / "equal_evaluations"))), read_rows(RESULTS / "starting")
    gained = [above(shown, "trec", evaluations, k)[0] for evaluations in (4096, 16384) for k in (4, 16, 64)]
    said(f"each of K = 4, 16 and 64 is {min(gained):.1f} to {max(gained):.1f} points above K = 1", NOTES)
    first, second = (words(started, "trec", evaluations, 4) for evaluations in (4096, 16384))
    said(f"K = 4 is {first} and {second} above K = 1", NOTES)


def test_the_verdict_on_every_row_is_of_the_rows() -> None:
    """The results page says of every number of directions K what the committed rows say.

    K = 4 is above K = 1, 256 is below it, and 64 is below it where evaluations are few.
    """
    shown = reported(plain(committed()))
    cells = sorted({(str(name), int(evaluations)) for name, evaluations in shown[["task", "evaluations"]].to_numpy()})
    four = np.array([above(shown, *cell, 4) for cell in cells])
    least, most = four[:, 0].min(), four[:, 0].max()
    sure = int((four[:, 0] > 2 * four[:, 1]).sum())
    assert least > 0
    said(
        f"K = 4 is above K = 1 in each of the {len(cells)} rows, by {least:.1f} to {most:.1f} points, in {sure} of them"
    )
    said(f"K = 4 is above K = 1 in every case, by {least:.1f} to {most:.1f} points", "docs/howto/choose-k.md")
    few = [cell for cell in cells if cell[1] in (512, 1024)]
    said(f"K = 64 is below K = 1 in each of the {len(few)} with 512 or 1,024 evaluations")
    said(f"and K = 256 in all {len(cells)}")
    assert all(above(shown, *cell, 64)[0] < 0 for cell in few)
    assert all(above(shown, *cell, 256)[0] < 0 for cell in cells)


def test_the_verdict_on_the_small_encoder_is_of_the_rows() -> None:
    shown = reported(plain(committed()))
    lora, body = ({k: words(shown, f"trec, {name}", 512, k) for k in (4, 16, 64)} for name in ("lora", "body"))
    said(f"K = 4 is {lora[4]} above K = 1 with LoRA and {body[4]} with its whole layer", NOTES)
    said(f"K = 16 level ({lora[16]} and {body[16]}), K = 64 below ({lora[64]} and {body[64]})", NOTES)
    more = [of_k(shown, "trec, lora", 512, k).mean() - of_k(shown, "trec, body", 512, k).mean() for k in KS]
    said(f"{min(more):.1f} to {max(more):.1f} points better than the layer's 50,496, for every K", NOTES)


def test_the_verdict_on_the_last_normalisation_is_of_the_rows() -> None:
    shown = reported(plain(read_rows(RESULTS / "equal_evaluations")))
    four, sixteen, many = (words(shown, "trec, norm", 4096, k) for k in (4, 16, 64))
    said(f"K = 4 is {four} above K = 1 at 4,096 evaluations, K = 16 {sixteen}, K = 64 {many}", NOTES)
    four, sixteen = (words(shown, "trec, norm", 1024, k) for k in (4, 16))
    said(f"at 1,024, where K = 4 is {four} above it and K = 16 {sixteen}, nothing is settled", NOTES)
    for evaluations, k in itertools.product((1024, 4096), KS):
        with_it, without = (of_k(shown, name, evaluations, k) for name in ("trec, norm", "trec"))
        assert with_it.mean() - without.mean() < 2 * np.hypot(with_it.sem(), without.sem())


def test_the_verdict_on_starting_values_is_of_the_rows() -> None:
    rows = read_rows(RESULTS / "starting")
    cells = rows[rows["directions"] <= 64].groupby(["task", "evaluations", "directions"]).mean(numeric_only=True)
    below = 100 * (cells["grid_accuracy"] - cells["accuracy"])
    own, long = below.loc["sst5"], below.loc["trec", 16384]
    said(f"on SST-5 {own.min():.1f} to {own.max():.1f} below it")
    said(f"at 16,384 {long.min():.1f} to {long.max():.1f} below it")
    assert (below.drop("sst5", level="task").drop(16384, level="evaluations") <= 1).mean() > 0.8
    there = pd.concat([cells.loc["sst5"], cells.loc["trec", 16384]])
    ratios = there["clip"] / there["grid_clip"]
    said(
        f"their clips are {ratios.min():.0f} to {ratios.max():.0f} times the grid's, and their step sizes smaller",
        NOTES,
    )
    assert (there["step_size"] < there["grid_step_size"]).all()


def said(text: str, page: str = "docs/results/training.md") -> None:
    assert text in " ".join((RESULTS.parents[1] / page).read_text().split())


def words(rows: pd.DataFrame, name: str, evaluations: int, k: int) -> str:
    mean, error = above(rows, name, evaluations, k)
    return f"{mean:.1f} +- {error:.1f}"


def above(rows: pd.DataFrame, name: str, evaluations: int, k: int) -> tuple[float, float]:
    """Returns by how many points the accuracy with K = `k` directions is above that with one, and its standard error.

    `rows` are the benchmark's rows, `name` is the task, and `evaluations` the number of evaluations of a record.
    """
    one, other = of_k(rows, name, evaluations, 1), of_k(rows, name, evaluations, k)
    return other.mean() - one.mean(), float(np.hypot(one.sem(), other.sem()))


def of_k(rows: pd.DataFrame, name: str, evaluations: int, k: int) -> "pd.Series[float]":
    return 100 * having(rows, task=name, evaluations=evaluations, directions=k)["accuracy"]
