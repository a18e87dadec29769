"""Tests of the benchmark of one optimizer step.

They test the rows of a case, the ratios of times taken in one turn, and the committed rows.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import optimizer_methods, optimizer_step
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.optimizer_methods import StepCase
from benchmarks.optimizer_step import BASE, FIELDS, KEY, METHODS, PRESETS, measure

TINY = StepCase("tiny", 2, 8, methods=(BASE, "rademacher", "private-rademacher", "four-pass", "adamw"))


def test_a_case_gives_a_row_per_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case gives one row for each method, with the right ratios of times.

    A replaced clock gives method number i of a group the time i + 1, so that the ratios are known.
    """
    peaks: dict[str, Any] = {BASE: 100.0, "rademacher": 104.0, "private-rademacher": 105.0, "four-pass": 110.0}
    peaks["adamw"] = None
    steps = []

    def timed(step: optimizer_step.Step, device: str) -> tuple[float, float]:
        step()
        steps.append(step.__qualname__)
        return (len(steps) - 1) % 3 + 1.0, (len(steps) - 1) % 3 + 3.0

    def peak(case: StepCase, device: str, method: str) -> float:
        if peaks[method] is None:
            raise torch.OutOfMemoryError
        return peaks[method]

    monkeypatch.setattr(optimizer_step, "_peak_megabytes", peak)
    monkeypatch.setattr(optimizer_step, "_timed", timed)
    rows = measure(TINY, "cpu", 2, 1e9)
    assert len(steps) == 2 * 3 * 3
    assert [row["method"] for row in rows] == list(TINY.methods)
    assert set().union(*rows) == {*KEY, *FIELDS, "status"}
    by = {row["method"]: row for row in rows}
    assert by["adamw"]["status"] == "out of memory"
    turns = {method: by[method]["ratio_high"] for method in TINY.methods[:4]}
    assert turns == {BASE: 1, "rademacher": 2, "four-pass": 3, "private-rademacher": 3}
    # The methods' order is reversed in every other turn.
    assert by["four-pass"]["ratio_low"] == pytest.approx(1 / 3, rel=1e-3)
    assert by["rademacher"]["wall_ratio"] == pytest.approx((4 / 3 + 4 / 5) / 2, rel=1e-3)
    assert by["private-rademacher"]["to_non_private"] == pytest.approx((3 / 2 + 1 / 2) / 2)
    assert by["private-rademacher"]["to_non_private_error"] == pytest.approx(0.93 * 0.5 / 2**0.5, rel=1e-3)
    assert by["rademacher"]["peak_to_inference"] == 1.04
    largest = by[BASE]["largest_mb"]
    assert largest == pytest.approx(2000 * 128 * 4 / 2**20, abs=0.05)
    assert by["four-pass"]["peak_less_largest_to_inference"] == pytest.approx((110 - largest) / 100, rel=1e-3)


def test_a_peak_that_was_not_seen_leaves_its_ratios_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the peak memory of inference was not seen, ratios to it are empty and not an error.

    Inference whose memory was allocated before has a peak of 0 MB.
    """
    monkeypatch.setattr(optimizer_step, "_peak_megabytes", lambda *case: 0.0)
    rows = measure(StepCase("tiny", 2, 8, methods=(BASE, "rademacher")), "cpu", 2, 1e9)
    assert [row["peak_to_inference"] for row in rows] == [None, None]


def test_every_method_of_every_preset_is_known() -> None:
    assert {method for cases in PRESETS.values() for case in cases for method in case.methods} == set(METHODS)
    assert all(case.methods[0] == BASE for cases in PRESETS.values() for case in cases)


def test_methods_that_hold_too_much_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_step, "_available_megabytes", lambda: 1.0)
    assert optimizer_step._tried("cpu", optimizer_step._peak_megabytes, TINY, "cpu", "rademacher") == "out of memory"


def test_a_method_that_cannot_run_is_a_row_that_says_why_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that cannot run gives a row that says why, and the other methods are measured.

    One method's package is missing. Another method fits into memory alone, but not together with the two forward
    passes.
    """
    timed = optimizer_step._turns

    def peak(case: StepCase, device: str, method: str) -> float:
        if method == "four-pass":
            raise ModuleNotFoundError("No module named 'opacus'")
        return 100.0

    def turns(case: StepCase, device: str, methods: Sequence[str], count: int, budget: float) -> Any:
        if "adamw" in methods:
            raise torch.OutOfMemoryError
        return timed(case, device, methods, count, budget)

    monkeypatch.setattr(optimizer_step, "_peak_megabytes", peak)
    monkeypatch.setattr(optimizer_step, "_turns", turns)
    by = {row["method"]: row for row in measure(TINY, "cpu", 2, 1e9)}
    assert by["four-pass"]["status"] == "ModuleNotFoundError: No module named 'opacus'"
    assert by["adamw"]["status"] == "out of memory"
    assert all("ratio" in by[method] for method in (BASE, "rademacher", "private-rademacher"))


def test_arguments_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        optimizer_step.EXPERIMENT.main(["--sizes", "enormous"])
    assert capsys.readouterr().err.endswith("--sizes must be in preset smoke; got 'enormous'\n")
    with pytest.raises(SystemExit, match="2"):
        optimizer_step.EXPERIMENT.main(["--turns", "1"])
    assert capsys.readouterr().err.endswith("must be an integer with 2 <= value <= 1000; got 1\n")
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="2"):
            optimizer_step.EXPERIMENT.main(["--device", "cuda"])
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(not (RESULTS / "optimizer_step" / "rows.csv").exists(), reason="no rows are recorded")
def test_recorded_rows_keep_the_order_that_is_claimed() -> None:
    """In the committed rows random signs cost less time than Gaussian directions.

    Both cost less than four passes over the weights.
    """
    rows = read_rows(RESULTS / "optimizer_step")
    for _, case in rows[rows["size"] == "roberta-base"].groupby(["batch", "length", "device"]):
        ratio = case.set_index("method")["ratio"]
        # At batch size 64 all three ratios are near 1.
        assert 0.95 < ratio["rademacher"] < ratio["gaussian"] < ratio["four-pass"]


@pytest.mark.skipif(not (RESULTS / "optimizer_step" / "rows.csv").exists(), reason="no rows are recorded")
def test_recorded_peaks_are_those_of_inference() -> None:
    """In the committed rows the peak memory of a step is that of inference within 5%.

    That is so for RoBERTa-base. For every model it is so when the largest parameter and 8 MB of this package's own are
    left out.
    """
    rows = read_rows(RESULTS / "optimizer_step")
    inference = rows[rows["method"] == BASE].set_index(["size", "batch", "dtype", "device"])["peak_mb"]
    ours = rows[rows["method"].isin(["gaussian", "sphere", "rademacher", "private-rademacher"])]
    assert (ours.loc[ours["size"] == "roberta-base", "peak_to_inference"] < 1.05).all()
    base = inference.loc[pd.MultiIndex.from_frame(ours[["size", "batch", "dtype", "device"]])].to_numpy()
    assert (ours["peak_mb"] - ours["largest_mb"] - 8 < 1.05 * base).all()


@pytest.mark.parametrize("method", ["dp-adamw", "dp-adamw-ghost"])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_private_steps_move_by_the_mean_of_clipped_gradients(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise and with plain gradient steps, all weights of a Llama move by the mean of the records' clipped
    gradients, each found by a backward pass of its own."""
    pytest.importorskip("opacus")
    from transformers import LlamaConfig

    config = LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, intermediate_size=24, pad_token_id=2)  # fmt: skip
    models: list[Any] = []
    build = optimizer_methods.classification_model

    def kept(case: StepCase, device: str) -> Any:
        models.append(build(case, device))
        return models[-1]

    monkeypatch.setattr(optimizer_methods, "configuration", lambda name: (config, "causal"))
    monkeypatch.setattr(optimizer_methods, "classification_model", kept)
    noise = {"noise_multiplier": 0.0, "max_grad_norm": 0.5, "expected_batch_size": 3}
    monkeypatch.setattr(optimizer_methods.Bench, "_noise", lambda self: noise)
    monkeypatch.setattr(torch.optim, "AdamW", torch.optim.SGD)
    monkeypatch.setattr(optimizer_methods, "STEP_SIZE", 1.0)
    with ExitStack() as stack:
        bench = optimizer_methods.Bench(StepCase("a-llama", 3, 6), "cpu", stack)
        step = bench.step(method)
        step()
    (plain, moved), (tokens, labels) = models, bench._batch
    old = list(plain.parameters())
    rows = [
        torch.autograd.grad(optimizer_methods._losses(plain, (tokens[i, None], labels[i, None])), old) for i in range(3)
    ]
    scales = [min(1.0, 0.5 / float(torch.cat([part.flatten() for part in row]).norm())) for row in rows]
    assert min(scales) < 1
    for index, (before, after) in enumerate(zip(old, moved.parameters(), strict=True)):
        mean = sum(row[index] * scale for row, scale in zip(rows, scales, strict=True)) / 3
        torch.testing.assert_close(before - after, mean, rtol=1e-3, atol=1e-6)
