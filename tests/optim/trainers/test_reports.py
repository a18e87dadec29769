"""What the services that `report_to` names are sent of a private run: released numbers, and nothing else of it."""

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from dpzero_theory.optim.files.transcript import read  # noqa: E402
from tests.optim.trainers.test_trainer import PRIVATE, ROWS, made  # noqa: E402

SERVICES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
"""The services by their names in `report_to`, and the packages by which transformers reaches them."""


class Package(ModuleType):
    """Stands for a package: every attribute of it is such an object too, and a call of one is noted in `told`."""

    def __init__(self, name: str, told: list[tuple[str, Any]]) -> None:
        super().__init__(name)
        self._told = told

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = Package(f"{self.__name__}.{name}", self._told)
        setattr(self, name, found)
        return found

    def __call__(self, *values: Any, **named: Any) -> Any:
        self._told.append((self.__name__, (*values, *named.values())))
        return self

    def __setitem__(self, name: str, value: Any) -> None:
        self._told.append((self.__name__, (name, value)))


def sent(told: list[tuple[str, Any]], service: str) -> list[dict[str, float]]:
    """Return the numbers that a service was sent while the run went, by step and name."""
    if service == "tensorboard":
        found: dict[int, dict[str, float]] = {}
        for name, values in told:
            if name.endswith(".add_scalar"):
                found.setdefault(values[2], {})[values[0]] = values[1]
        return list(found.values())
    return [dict(values[0]) for name, values in told if name == f"{service}.log"]


@pytest.mark.parametrize("service", SERVICES)
def test_services_are_sent_released_numbers_alone(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, Any]] = []
    package = Package(SERVICES[service], told)
    package.__version__ = "99"
    for name in (package.__name__, "wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util"):
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    package.ConfigError = KeyError
    integrations = sys.modules["transformers.integrations.integration_utils"]
    monkeypatch.setattr(integrations, f"is_{service}_available", lambda: True)
    others = [{**row, "input_ids": [11, 11, 11]} for row in ROWS]
    trainer = made(
        tmp_path / "out", evaluated=others, report_to=[service], logging_steps=2, logging_first_step=True,
        eval_strategy="steps", eval_steps=3,
    )  # fmt: skip
    trainer.train()
    _, records = read(tmp_path / "out" / "_dpzero" / "run.sqlite")
    plan = trainer.run.plan
    released = [abs(plan.clip / plan.levels * float(record.sums[0]) / PRIVATE["expected_batch"]) for record in records]
    logs = [{name.split("/")[-1]: value for name, value in log.items()} for log in sent(told, service)]
    steps = [log for log in logs if "released" in log]
    assert [log["released"] for log in steps] == pytest.approx([released[t] for t in (0, 1, 3, 5)], rel=1e-12)
    assert all(0 < log["epsilon"] <= PRIVATE["target_epsilon"] for log in steps)
    assert all(log["step_size"] == PRIVATE["step_size"] for log in steps)
    known = {"released", "epsilon", "step_size", "epoch", "global_step", "loss"}  # of the evaluation's other records
    assert {name for log in logs for name in log} <= known
    assert not any("train_loss" in name or name.endswith("train/loss") for log in sent(told, service) for name in log)
    assert any(math.isfinite(log.get("loss", math.nan)) for log in logs)
