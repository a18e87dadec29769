"""Private training runs of torch modules: the functions and classes that most programs import.

    from dpzero_theory.optim import losses_for, make_private_with_epsilon

`Plan` holds the settings of a run, `make_private_with_epsilon` and `make_private` start or resume one. Names are
imported at their first use, since `DPZeroTrainer` and `privatize` need the extra `hf`, and the trainers for TRL `trl`.
"""

from typing import TYPE_CHECKING

from dpzero_theory._lazy import lazily

if TYPE_CHECKING:
    from dpzero_theory.optim.losses.rewards import reward_losses
    from dpzero_theory.optim.losses.shaping import public_shape
    from dpzero_theory.optim.losses.task_losses import losses_for
    from dpzero_theory.optim.losses.users import by_user
    from dpzero_theory.optim.plan import Plan
    from dpzero_theory.optim.private import make_from_seed_not_private, make_private, make_private_with_epsilon
    from dpzero_theory.optim.trainers.trainer import DPZeroTrainer, privatize
    from dpzero_theory.optim.trainers.trl import DPZeroDPOTrainer, DPZeroSFTTrainer

__all__ = [  # noqa: RUF022  # The names are in the order in which a user meets them
    "make_private_with_epsilon", "make_private", "make_from_seed_not_private", "Plan", "public_shape",
    "losses_for", "reward_losses", "by_user", "DPZeroTrainer", "privatize", "DPZeroSFTTrainer", "DPZeroDPOTrainer",
]  # fmt: skip

__getattr__ = lazily(
    __name__,
    {
        "private": ("make_private_with_epsilon", "make_private", "make_from_seed_not_private"),
        "plan": ("Plan",),
        "losses.shaping": ("public_shape",),
        "losses.task_losses": ("losses_for",),
        "losses.rewards": ("reward_losses",),
        "losses.users": ("by_user",),
        "trainers.trainer": ("DPZeroTrainer", "privatize"),
        "trainers.trl": ("DPZeroSFTTrainer", "DPZeroDPOTrainer"),
    },
)
