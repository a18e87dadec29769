"""Users as records: all that a user has in a data set is one record, and privacy is for the user.

    data = by_user(texts, "speaker", at_most=8)
    run = make_private_with_epsilon(model, losses, data, collate=collate, ...)   # with losses and collate of texts

The record of a user is the list of the user's entries ("texts"), and its loss is the mean of their losses. So n is the
number of users, a user's difference is clipped, and all guarantees of a run hold for users in the place of records: two
data sets are neighbours if they differ in all texts of one user.

With `at_most` each step evaluates at most so many texts of a user. They are drawn anew for each release, without
replacement, from the secret key in the run's folder, so that a resumed run and all points of a step have the same ones.
The draw for one user does not depend on other users. It adds no privacy and costs none.

A user is evaluated without another user's texts, in parts of `micro_batch` texts. So a user's loss depends on no other
user to the last bit, and memory does not grow with the number of texts. Data sets are read and nothing is written.
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
    """A map-style data set whose record i is a list of texts of user i, at most `at_most`; `by_user` makes it.

    Of a user with more, data[i] is always the same draw. A run calls `drawn` instead, with a seed for each release that
    follows from the secret key in the run's folder.

    Args:
        texts: the data set of texts.
        places: for each user, the indices in `texts` of the user's texts.
        at_most: the largest number of a user's texts in a step, an integer >= 1. None takes all.
    """

    def __init__(self, texts: Data, places: Sequence[Sequence[int]], at_most: int | None) -> None:
        self.texts, self.at_most, self._places = texts, at_most, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> list[Any]:
        return self.drawn(index, index)

    def drawn(self, index: int, seed: int) -> list[Any]:
        """Return the texts of the user with the number `index`, from 0.

        If there are more than `at_most`, so many of them are drawn without replacement, from `seed`, an integer in [0,
        2^64).
        """
        places = self._places[index]
        if self.at_most is not None and len(places) > self.at_most:
            places = sorted(random.Random(seed).sample(places, self.at_most))
        return read(self.texts, places, seed.to_bytes(8, "little"))

    def over(self, texts: Data) -> "ByUser":
        """Return a data set of the same users whose texts are read from `texts`, which has the same texts in the same
        order in another form, for example with fewer columns."""
        return ByUser(texts, self._places, self.at_most)

    @property
    def unit(self) -> str:
        """A text that says what one record is, which the run's file keeps."""
        most = "all texts" if self.at_most is None else f"at most {self.at_most} texts a step"
        return f"user: mean of the losses of {most}"

    def collate(self, collate: Collate, texts_at_once: int) -> Collate:
        """Return a function from a list of users' records to their batch, a list of parts for each user.

        A part is a pair (number of texts, their batch), with at most `texts_at_once` texts. `collate` makes the batch
        of a list of texts; it stands for torch's default_collate if None.
        """
        join = default_collate if collate is None else collate

        def parts(texts: list[Any]) -> list[tuple[int, Any]]:
            cut = [texts[first : first + texts_at_once] for first in range(0, len(texts), texts_at_once)]
            return [(len(part), join(part)) for part in cut]

        return lambda users: [parts(texts) for texts in users]

    def losses(self, losses: Losses) -> Losses:
        """Return the loss function of users, for batches that `collate` made: the mean loss of each user's texts.

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
    """Make one record of all texts of each user, so that a run's privacy is for users.

    Args:
        texts: a map-style data set. An entry ("text") is what `losses` and `collate` take, and has one owner.
        key: whose a text is: the name of the column that has its owner, a function from an entry to its owner, or a
            sequence of the owners of all entries. An owner is a text, a number or another hashable value. A named
            column is left out of the records. A text with several owners is refused: it would be read in the steps of
            each of them.
        at_most: the largest number of a user's texts in a step, drawn anew in each, an integer >= 1; None for all.

    Returns:
        The data set of users, in the order in which they first appear. Its length n is the number of users.

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


# The data set of mappings without one of their entries
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
    # Equal owners must have equal hashes, so that a number in an array or a tensor becomes one of Python.
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
