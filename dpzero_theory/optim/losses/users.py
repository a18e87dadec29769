"""Makes each user's entries of a data set one record, so that the privacy of a run is for users.

    data = by_user(texts, "speaker", at_most=8)
    run = make_private_with_epsilon(model, losses, data, collate=collate, ...)

Here `losses` and `collate` are the functions for single entries, which are called texts. The loss of a user is the mean
loss of the user's texts. So n is the number of users, what one user adds to a step is clipped, and neighbouring data
sets differ in all texts of one user.

If `at_most` is given, each step draws at most that many texts of a user, without replacement, with a seed that follows
from the run's secret key, the step and the user's index. The draw does not amplify privacy. Each user is evaluated
separately, at most `micro_batch` texts at a time.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpzero_theory import check
from dpzero_theory.optim.losses.evaluation import Losses, per_record
from dpzero_theory.optim.losses.records import Collate, Data, read, require_data

_Key = str | Callable[[Any], object] | Sequence[object]


class ByUser:
    """A map-style data set whose record i is a list of the texts of user i, as `by_user` returns it.

    If the user has more than `at_most` texts, data[i] is a fixed random choice of them. A run calls `drawn` instead,
    with another seed in each step.

    Args:
        texts: a map-style data set of texts, the entries that users own.
        places: for each user, the indices in `texts` of the user's texts.
        at_most: the largest number of texts in a record, an integer >= 1; None takes all of a user's texts.
    """

    def __init__(self, texts: Data, places: Sequence[Sequence[int]], at_most: int | None) -> None:
        self.texts, self.at_most, self._places = texts, at_most, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> list[Any]:
        return self.drawn(index, index)

    def drawn(self, index: int, seed: int) -> list[Any]:
        """Return texts of the user with the given index, from 0: all, or `at_most` drawn without replacement if there
        are more.

        The draw is determined by `seed`, an integer in [0, 2^64).
        """
        places = self._places[index]
        if self.at_most is not None and len(places) > self.at_most:
            places = sorted(random.Random(seed).sample(places, self.at_most))
        return read(self.texts, places, seed.to_bytes(8, "little"))

    def over(self, texts: Data) -> "ByUser":
        """Return a data set of the same users and with the same `at_most`, whose texts are read from another data set
        `texts`.

        `texts` must have the same entries in the same order, but may have them in another form, such as with fewer
        columns.
        """
        return ByUser(texts, self._places, self.at_most)

    @property
    def unit(self) -> str:
        """A string for the run's file that says what a record is, such as "user: mean of the losses of all
        texts"."""
        most = "all texts" if self.at_most is None else f"at most {self.at_most} texts a step"
        return f"user: mean of the losses of {most}"

    def collate(self, collate: Collate, texts_at_once: int) -> Collate:
        """Return a function from a list of records, each a list of one user's texts, to a batch that `losses` takes.

        The batch has a list for each user, of pairs (number of texts, their batch). Each pair holds at most
        `texts_at_once` texts, from which `collate`, or torch's default_collate if it is None, makes their batch.
        """
        join = default_collate if collate is None else collate

        def parts(texts: list[Any]) -> list[tuple[int, Any]]:
            cut = [texts[first : first + texts_at_once] for first in range(0, len(texts), texts_at_once)]
            return [(len(part), join(part)) for part in cut]

        return lambda users: [parts(texts) for texts in users]

    def losses(self, losses: Losses) -> Losses:
        """Return a loss function that gives each user the mean loss of the user's texts, for batches from the method
        `collate`.

        `losses` is a function (module, batch of texts) -> one loss for each text.
        """

        @wraps(losses)
        def of_users(module: nn.Module, batch: Any) -> Tensor:
            found = [
                torch.cat([per_record(losses(module, content), count) for count, content in parts]) for parts in batch
            ]
            return torch.stack([user.mean() for user in found])

        return of_users


def by_user(texts: Data, key: _Key, *, at_most: int | None = None) -> ByUser:
    """Make all entries of each user in a data set one record, so that the privacy of a run is for users.

    Args:
        texts: a map-style data set. Each entry, called a text, has one owner, and is in the form that the run's
            `losses` and `collate` take.
        key: who owns each text: the name of a column, which is then removed from the texts; a function from a text to
            its owner; or a sequence of the owners of all texts. An owner is a string, a number or other hashable value.
        at_most: the largest number of a user's texts in one step, an integer >= 1, drawn anew in each step; None for
            all.

    Returns:
        A data set with one record for each user, in the order in which users first appear.

    Raises:
        ValueError: an argument is outside its range, or a text has no owner or several.
    """
    require_data(texts, "texts")
    if isinstance(texts, ByUser):
        raise ValueError("texts must be the entries themselves; got what by_user has returned")
    most = None if at_most is None else check.integer("at_most", at_most)
    places: dict[Hashable, list[int]] = {}
    for number, owner in enumerate(_owners(texts, key)):
        places.setdefault(_owner(owner, number), []).append(number)
    if isinstance(key, str):
        texts = texts.remove_columns(key) if hasattr(texts, "remove_columns") else _Without(texts, key)
    return ByUser(texts, list(places.values()), most)


# A data set of mappings with one of their columns left out
class _Without:
    def __init__(self, data: Data, column: str) -> None:
        self._data, self._column = data, column

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {name: value for name, value in self._data[index].items() if name != self._column}


def _owners(texts: Data, key: _Key) -> Sequence[object]:
    # `key` is the name of the column with the owners, a function from a text to its owner, or a sequence of owners.
    if isinstance(key, str):
        try:
            return list(texts[key]) if hasattr(texts, "column_names") else [text[key] for text in _all(texts)]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"key must be found in every text; got {key!r}, which some text lacks") from None
    owners = [key(text) for text in _all(texts)] if callable(key) else list(key)
    if len(owners) != len(texts):
        raise ValueError(f"key must have one owner for each of {len(texts)} texts; got {len(owners)}")
    return owners


def _all(texts: Data) -> Iterator[Any]:
    return (texts[number] for number in range(len(texts)))


def _owner(owner: Any, number: int) -> Hashable:
    # Equal owners must have equal hashes, so a number in an array or a tensor is converted to a Python number.
    if isinstance(owner, Tensor) or type(owner).__module__ == "numpy":
        owner = owner.item() if owner.ndim == 0 else owner.tolist()
    if isinstance(owner, list | tuple | set | frozenset | Mapping):
        raise ValueError(
            f"key must give every text one owner; got {len(owner)} for text {number}: leave texts of several owners out"
        )
    missing = owner is None or owner == "" or (isinstance(owner, float) and math.isnan(owner))
    if missing or not isinstance(owner, Hashable):
        raise ValueError(f"key must give every text one owner; got {check.shown(owner)} for text {number}")
    return owner
