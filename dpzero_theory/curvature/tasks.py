"""`Task`, a module with per-sample losses and samples to be measured, and the tasks that the command knows by name."""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpzero_theory import check, datasets
from dpzero_theory.curvature.objective import Batch, Losses

_DIGITS_AT_ONCE = 2048  # A batch of this many digits needs little memory.
_FORMS = "mlp-digits:WIDTH, MODULE:FUNCTION"  # Messages show the forms of a model's name by this text.


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model with losses and samples, to be measured by the command `python -m dpzero_theory.curvature`.

    Attributes:
        module: the torch module, in eval mode.
        losses: a function (module, batch) that returns one loss for each sample, shape (batch,).
        batches: the samples, in batches that fit into memory: tensors whose first axis is the sample, alone or in
            lists, tuples and dictionaries.
        least_loss: a lower bound on every sample's loss.
        known: "public" or "synthetic" if the data is known to be that; "" if the user must declare it.
    """

    module: nn.Module
    losses: Losses
    batches: Sequence[Batch]
    least_loss: float = 0.0
    known: str = ""


def logits(module: nn.Module, inputs: Batch) -> torch.Tensor:
    """Return what a module computes, `module(**inputs)` for a dictionary of inputs and `module(inputs)` otherwise."""
    scores: torch.Tensor = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return scores


def cross_entropy(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of each sample, shape (batch,).

    Args:
        module: a module that returns logits, shape (batch, classes).
        batch: a pair (inputs, labels). Inputs are a tensor, or a dictionary of keyword arguments for the module. Labels
            are class indices, shape (batch,); the loss of a sample with label -100 is 0.
    """
    inputs, labels = batch
    return nn.functional.cross_entropy(logits(module, inputs), labels, reduction="none")


def mlp_digits(width: int, samples: int | None, seed: int) -> Task:
    """Return the task of a tanh network with one hidden layer and cross-entropy on scikit-learn's handwritten digits.

    Args:
        width: the number of hidden units. The network has 75 width + 10 weights, in float64.
        samples: the number of digits; all 1,797 if None or more.
        seed: draws the order of the digits, and PyTorch's initial weights.

    Raises:
        PreconditionError: scikit-learn is not installed.
    """
    features, labels = (torch.as_tensor(part[:samples]) for part in datasets.digits(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10)).double().eval()
    return Task(
        module=module,
        losses=cross_entropy,
        batches=list(zip(torch.split(features, _DIGITS_AT_ONCE), torch.split(labels, _DIGITS_AT_ONCE), strict=True)),
        known="public",
    )


def load(model: str, data: str, samples: int | None, seed: int) -> Task:
    """Return a task by its name.

    Args:
        model: "mlp-digits:WIDTH", or "MODULE:FUNCTION" for your own function, called as function(data, samples, seed),
            which returns a `Task`. Python must be able to import MODULE, which must define FUNCTION itself.
        data: "digits" for mlp-digits; your own function gets this text.
        samples: the number of samples; the task's default if None.
        seed: draws the samples and random weights.

    Raises:
        ValueError: the name is unknown, the data does not fit the model, or your function has other parameters or
            returns something else.
        PreconditionError: scikit-learn is not installed, for mlp-digits.
    """
    name, _, rest = model.partition(":")
    if name == "mlp-digits":
        try:
            width = int(rest)
        except ValueError:
            raise ValueError(f"model must be mlp-digits:WIDTH with an integer WIDTH; got {model!r}") from None
        check.integer("model", width, at_most=100_000)
        if data != "digits":
            raise ValueError(f"data must be 'digits' for {model}; got {data!r}")
        return mlp_digits(width, samples, seed)
    if rest:
        return _own(name, rest)(data, samples, seed)
    raise ValueError(f"model must be one of {_FORMS}; got {model!r}")


def _own(module: str, function: str) -> Callable[[str, int | None, int], Task]:
    # Only a function that the module itself defines, with exactly the parameters data, samples and seed, is called
    place = f"{module}:{function}"
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"model must be one of {_FORMS}; got {place!r}")
    if module.split(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"model must be a function of your own, not of Python's library; got {place!r}")
    try:
        member = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model must be one of {_FORMS}; {error}") from None
    wanted = ["data", "samples", "seed"]
    if not (
        inspect.isfunction(member) and member.__module__ == module and [*inspect.signature(member).parameters] == wanted
    ):
        raise ValueError(
            f"model must be a function defined in {module} as {function}(data, samples, seed); got {member!r}"
        )
    return lambda *given: _checked_task(member(*given), place)


def _checked_task(made: object, place: str) -> Task:
    if not isinstance(made, Task):
        raise ValueError(
            f"model must return a dpzero_theory.curvature.tasks.Task; {place} returned {type(made).__name__}"
        )
    return made
