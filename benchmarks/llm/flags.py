"""Types of the flags of this package's commands, beside numbers and paths."""

import argparse
import re
from pathlib import Path

from dpzero_theory import check

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def model_name(text: str) -> str:
    """A type for `add_argument`: a name or id such as FacebookAI/roberta-large, or a folder that is there."""
    if _ID.fullmatch(text) or Path(text, "config.json").is_file() or Path(text, "tokenizer.json").is_file():
        return text
    rule = "must be a folder with a model or an id of Hugging Face, OWNER/NAME"
    raise argparse.ArgumentTypeError(f"{rule}; got {check.shown(text)}")
