"""What pyproject.toml cannot say: on an index the README stands without the files that it links to."""

import re
from pathlib import Path

from setuptools import setup

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)[^)]*\)")

readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(long_description=LINK.sub(r"\1", PICTURE.sub("", readme)), long_description_content_type="text/markdown")
