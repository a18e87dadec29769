"""Neighbouring relations: which pairs of data sets differential privacy compares."""

from enum import StrEnum

from dpzero_theory import check


class Relation(StrEnum):
    """How two neighbouring data sets differ: `REPLACE_ONE`, in the value of one record; `ADD_REMOVE`, by one additional
    record; `ZERO_OUT`, in one record that contributes zero in one of them. Members are strings, so
    `Relation.ADD_REMOVE` and "add-remove" are interchangeable.

    Attributes:
        meaning: one clause that explains the relation in a privacy statement.
        replaces: True for `REPLACE_ONE`, where the record contributes to the sum in both data sets; False otherwise.
        sensitivity: the largest change of a sum of clipped contributions between neighbours, in units of the clip: 2
            for `REPLACE_ONE`, otherwise 1.
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
    """One record has another value, and the number of records is public, as in Definition def:dp of the paper."""
    ADD_REMOVE = "add-remove", "neighbours differ by one record more or less; n is public, the same for both"
    """One record is in one data set and missing from the other. A fixed order of batches is not accounted for under
    this relation, because a missing record moves later records to other batches."""
    ZERO_OUT = "zero-out", "neighbours differ in one record, which adds nothing in one of them; n is public"
    """One record contributes zero wherever it is used. The number of records and the batches stay the same."""

    @classmethod
    def _missing_(cls, value: object) -> "Relation":
        return cls(check.choice("relation", value, tuple(cls)))  # which raises ValueError, with the possible names
