"""Named values of one kind (direction laws, algorithms, noise laws, samplings): an extension is one registration."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from dpzero_theory import check


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class Registry(Mapping[str, T]):
    """name -> value, in the order of registration. `argument` names the kind in errors, which are ValueErrors."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self._values: dict[str, T] = {}
        self._families: dict[str, Callable[[str], T]] = {}

    def register(self, value: T) -> T:
        """Add a value under its name and return it. Raises ValueError for a name that is taken."""
        if value.name in self._values:
            raise ValueError(f"{self.argument} must have a name of its own; got {value.name!r}, which is registered")
        self._values[value.name] = value
        return value

    def register_family(self, name: str, member: Callable[[str], T]) -> None:
        """Add values that are made when asked for: NAME:ARGUMENTS is member(ARGUMENTS). Iteration leaves them out."""
        self._families[name] = member

    @property
    def families(self) -> tuple[str, ...]:
        """The names of families, in the order of registration."""
        return tuple(self._families)

    def __getitem__(self, name: str) -> T:
        if name in self:
            return self._values[name]
        family, _, arguments = name.partition(":") if isinstance(name, str) else ("", "", "")
        if family in self._families:
            return self._families[family](arguments)
        known = dict.fromkeys((*self._values, *self._families))
        return self._values[check.choice(self.argument, name, tuple(known))]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
