"""The page of all fields of `TrainingArguments`.  python docs/fields.py > docs/reference/training-arguments.md"""

from dataclasses import fields

from transformers import TrainingArguments

from dpzero_theory.optim.trainers.arguments import HONOURED, INSTEAD

HEAD = """# Training arguments

What `DPZeroTrainer` does with each field of transformers' `TrainingArguments`. A refused field must be left at its
default: any other value is one line that says what to use instead, before anything is computed. A field that is not
here, of another version, is refused too. `tests/optim/trainers/test_arguments.py` shows that each honoured field acts,
and each other one is refused.

"""


def page() -> str:
    """Return the page in Markdown: a table of all fields, first those that `DPZeroTrainer` honours, then those that it
    refuses."""
    names = {field.name for field in fields(TrainingArguments)}
    honoured = [f"| `{name}` | honoured | {about} |" for name, about in HONOURED.items() if name in names]
    refused = [f"| `{name}` | refused | {instead} |" for name, instead in INSTEAD.items() if name in names]
    lines = ["| field | | what it is about, or what to use instead |", "|---|---|---|", *honoured, *refused]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
