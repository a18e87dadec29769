"""`Registry`, a dictionary of named values of one kind, such as noise laws, to which users can add values."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from dpzero_theory import check


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_Named)


class Registry(dict[str, _Entry]):
    """A dictionary from names to values of one kind, in the order of registration; users can add values of their own.

    `registry[name]` finds the values that `register` added, unlisted values (`keep`), and values that a family makes
    from a text (`register_family`). It raises ValueError for an unknown name. `in`, `get` and iteration know only the
    values that `register` added.

    Args:
        argument: what error messages call the argument that takes such a name, for example "direction".
    """

    def __init__(self, argument: str) -> None:
        super().__init__()
        self.argument = argument
        self._families: dict[str, Callable[[str], _Entry]] = {}
        self._unlisted: dict[str, _Entry] = {}

    def register(self, value: _Entry) -> _Entry:
        """Adds a value under its attribute `name`, and returns the value. Raises ValueError if the name is taken."""
        if value.name in self:
            raise ValueError(f"{self.argument} must have a name of its own; got {value.name!r}, which is registered")
        self[value.name] = value
        return value

    def register_family(self, name: str, member: Callable[[str], _Entry]) -> None:
        """Adds a family of values: looking up the text "NAME:ARGUMENTS" then returns member("ARGUMENTS").

        Args:
            name: NAME, without a colon; an earlier family of this name is replaced.
            member: a function from the text ARGUMENTS, empty if NAME alone is looked up, to a value. It must raise
                ValueError for a text that it does not know.
        """
        self._families[name] = member

    def keep(self, value: _Entry) -> None:
        """Adds a value that can be looked up by its attribute `name`, but that iteration and error messages omit. It
        replaces an earlier value of this name that `keep` added. A value of this name that `register` added is found
        first."""
        self._unlisted[value.name] = value

    @property
    def families(self) -> tuple[str, ...]:
        """The names of the families, each of which makes a value from a looked-up text "NAME:ARGUMENTS", in the order
        in which `register_family` added them."""
        return tuple(self._families)

    def __missing__(self, name: object) -> _Entry:
        if isinstance(name, str) and name in self._unlisted:
            return self._unlisted[name]
        family, _, arguments = name.partition(":") if isinstance(name, str) else ("", "", "")
        if family in self._families:
            return self._families[family](arguments)
        return self[check.choice(self.argument, name, tuple(dict.fromkeys((*self, *self.families))))]
