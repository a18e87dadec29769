"""`Registry`, a mapping of named values of one kind, such as noise laws, to which users can add their own."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from dpzero_theory import check


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


class Registry(dict[str, _Entry]):
    """A dictionary from names to values of one kind, in the order of registration; users can add values of their own.

    `registry[name]` raises ValueError for an unknown name. It also finds values that `keep` added, and makes the values
    of families (`register_family`); `in`, `get` and iteration know only the values that `register` added.

    Args:
        argument: the name, in error messages, of the argument that takes the name of a value, such as "direction".
    """

    def __init__(self, argument: str) -> None:
        super().__init__()
        self.argument = argument
        self._families: dict[str, Callable[[str], _Entry]] = {}
        self._unlisted: dict[str, _Entry] = {}

    def register(self, value: _Entry) -> _Entry:
        """Add a value under its attribute `name`, and return the value. Raises ValueError for a name that is taken."""
        if value.name in self:
            raise ValueError(f"{self.argument} must have a name of its own; got {value.name!r}, which is registered")
        self[value.name] = value
        return value

    def register_family(self, name: str, member: Callable[[str], _Entry]) -> None:
        """Add a family of values: looking up the text "NAME:ARGUMENTS" then returns member("ARGUMENTS").

        Args:
            name: NAME, without a colon; a family of this name that was added before is replaced.
            member: a function from the text ARGUMENTS, empty if NAME alone is looked up, to a value. It raises
                ValueError for a text that it does not know.
        """
        self._families[name] = member

    def keep(self, value: _Entry) -> None:
        """Add a value that can be looked up by its attribute `name`, but that iteration and error messages leave out.
        It replaces a value of the same name that `keep` added before. Values that `register` added come first."""
        self._unlisted[value.name] = value

    @property
    def families(self) -> tuple[str, ...]:
        """The names that `register_family` added, in this order. A family makes the value of a text "NAME:ARGUMENTS",
        NAME being its name, when it is looked up."""
        return tuple(self._families)

    def __missing__(self, name: object) -> _Entry:
        if isinstance(name, str) and name in self._unlisted:
            return self._unlisted[name]
        family, _, arguments = name.partition(":") if isinstance(name, str) else ("", "", "")
        if family in self._families:
            return self._families[family](arguments)
        return self[check.choice(self.argument, name, tuple(dict.fromkeys((*self, *self.families))))]
