"""The page of all fields of `TrainingArguments`.  python docs/fields.py > docs/reference/training-arguments.md"""

from dataclasses import fields

from transformers import TrainingArguments

from dpzero_theory.optim.trainers.arguments import HONOURED, INSTEAD

HEAD = """# Training arguments

What `DPZeroTrainer` does with each field of transformers' `TrainingArguments`. An honoured field works as in a
`Trainer`. A refused field must be left at its default; with any other value the trainer ends in one line that says what
to use instead, before anything is computed. Fields of other versions of transformers, which are not in this table, are
refused too.

"""


def page() -> str:
    """Return the page in Markdown: a table of all fields, first those that `DPZeroTrainer` honours, then those that it
    refuses."""
    names = [field.name for field in fields(TrainingArguments)]
    honoured = [f"| `{name}` | honoured | {about} |" for name, about in HONOURED.items() if name in names]
    left = sorted((name for name in names if name not in HONOURED), key=lambda name: INSTEAD.get(name, "~"))
    refused = [f"| `{name}` | refused | {INSTEAD.get(name, 'a private run does not use it')} |" for name in left]
    lines = ["| field | | what it is about, or what to use instead |", "|---|---|---|", *honoured, *refused]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
