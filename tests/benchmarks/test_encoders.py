from pathlib import Path

import pytest

from benchmarks.encoders import Encoder
from benchmarks.equal_evaluations import Variant, grid
from benchmarks.llm.models import LanguageModel, random_model
from benchmarks.llm.records import Record
from benchmarks.pretrain import text
from benchmarks.pretrain.models import config

SENTENCES = [f"who {verb} the {thing} ?" for verb in ("made", "saw", "was") for thing in ("film", "war", "moon")]
RECORDS = [Record({"text": sentence}, label=index % 6) for index, sentence in enumerate(SENTENCES * 40)]
PARTS = RECORDS[:300], RECORDS[300:330], RECORDS[330:]


@pytest.mark.parametrize(("weights", "d"), [("top-norm", 32), ("lora", 1024)])
def test_every_plan_begins_with_the_same_weights(tmp_path: Path, weights: str, d: int) -> None:
    """Beside the label vectors so many weights are trained, and they learn what the sentences mean."""
    words = text.tokenizer("roberta", tmp_path / "pairs.json", SENTENCES)
    model = LanguageModel(random_model(config("roberta", 16), "encoder", seed=0), words, "encoder")
    work = Encoder(model, "trec", PARTS, weights)
    assert work.n == 300
    assert work.d == 6 * 16 + d
    still, plan = grid(Variant(4), 40, work.n, (2.0,), (1e-9, 0.03))
    before, found, again = work.accuracies([still, plan, plan], 0)
    assert found == again != before
