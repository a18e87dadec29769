"""Which data sets are neighbours."""

from enum import StrEnum

from dpzero_theory import check


class Relation(StrEnum):
    """How two neighbouring data sets differ; a string, so that either form can be given."""

    REPLACE_ONE = "replace-one"
    """One record has another value (the paper's Definition def:dp): the number of records is public."""
    ADD_REMOVE = "add-remove"
    """One record more or less. Orders in which later records move up when one is missing are not accounted for it."""
    ZERO_OUT = "zero-out"
    """One record counts as zero wherever it is used: the number of records and the others' batches are as before."""

    @property
    def meaning(self) -> str:
        """What it is, for a reader of a privacy statement."""
        return {
            Relation.REPLACE_ONE: "neighbours differ in the value of one record",
            Relation.ADD_REMOVE: "neighbours differ by one record more or less; n is public, the same for both",
            Relation.ZERO_OUT: "neighbours differ in one record, which adds nothing in one of them; n is public",
        }[self]

    @property
    def replaces(self) -> bool:
        """Whether a record takes another value, so that its contribution may change its sign."""
        return self is Relation.REPLACE_ONE

    @property
    def sensitivity(self) -> int:
        """Largest change of a sum of clipped contributions, in clips: 2 for replace-one, else 1."""
        return 2 if self.replaces else 1

    @classmethod
    def of(cls, value: object) -> "Relation":
        """The relation of that name. Raises ValueError naming the argument, the names and what was given."""
        return cls(check.choice("relation", value, tuple(cls)))
