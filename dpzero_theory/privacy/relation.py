"""Neighbouring relations: which pairs of data sets differential privacy compares."""

from enum import StrEnum

from dpzero_theory import check


class Relation(StrEnum):
    """How two neighbouring data sets differ: `REPLACE_ONE`, in the value of one record; `ADD_REMOVE`, by one record
    more or less; `ZERO_OUT`, in one record, which adds nothing in one of them. Each member is also a string, so
    functions accept `Relation.ADD_REMOVE` or "add-remove".

    Attributes:
        meaning: one clause that explains this relation to a reader of a privacy statement.
        replaces: whether both data sets have a contribution of the record, so that it may change its sign: true for
            replace-one only.
        sensitivity: the largest change of a sum of clipped contributions between neighbours, in units of the clip: 2
            for replace-one, else 1.
    """

    meaning: str
    replaces: bool
    sensitivity: int

    def __new__(cls, value: str, meaning: str = "") -> "Relation":
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        member.replaces = value == "replace-one"
        member.sensitivity = 2 if member.replaces else 1
        return member

    REPLACE_ONE = "replace-one", "neighbours differ in the value of one record"
    """One record has another value, and the number of records is public, as in the paper's Definition def:dp."""
    ADD_REMOVE = "add-remove", "neighbours differ by one record more or less; n is public, the same for both"
    """One record is in one data set and missing from the other. A fixed order of batches is not accounted for this
    relation, because later records move to other batches when one is missing."""
    ZERO_OUT = "zero-out", "neighbours differ in one record, which adds nothing in one of them; n is public"
    """One record counts as zero wherever it is used. The number of records and the other records' batches stay the
    same."""

    @classmethod
    def _missing_(cls, value: object) -> "Relation":
        return cls(check.choice("relation", value, tuple(cls)))  # which raises ValueError, with the possible names
