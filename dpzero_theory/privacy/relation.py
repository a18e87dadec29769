"""Neighbouring relations: which pairs of data sets differential privacy compares."""

from enum import StrEnum

from dpzero_theory import check


class Relation(StrEnum):
    """How two neighbouring data sets differ. Each member is also a string, so that functions take the member or its
    name."""

    REPLACE_ONE = "replace-one"
    """One record has another value, and the number of records is public.

    This is the relation of the paper's Definition def:dp.
    """
    ADD_REMOVE = "add-remove"
    """One record is in one data set and missing from the other. A fixed order of batches is not accounted for this
    relation, because later records move to other batches when one is missing."""
    ZERO_OUT = "zero-out"
    """One record counts as zero wherever it is used. The number of records and the other records' batches stay the
    same."""

    @property
    def meaning(self) -> str:
        """One clause that explains this relation to a reader of a privacy statement."""
        return {
            Relation.REPLACE_ONE: "neighbours differ in the value of one record",
            Relation.ADD_REMOVE: "neighbours differ by one record more or less; n is public, the same for both",
            Relation.ZERO_OUT: "neighbours differ in one record, which adds nothing in one of them; n is public",
        }[self]

    @property
    def replaces(self) -> bool:
        """Whether a record takes another value, so that its contribution to a sum may change its sign."""
        return self is Relation.REPLACE_ONE

    @property
    def sensitivity(self) -> int:
        """The largest change of a sum of clipped contributions between neighbours, in units of the clip.

        It is 2 for replace-one, else 1.
        """
        return 2 if self.replaces else 1

    @classmethod
    def _missing_(cls, value: object) -> "Relation":
        return cls(check.choice("relation", value, tuple(cls)))  # which raises ValueError, with the possible names
