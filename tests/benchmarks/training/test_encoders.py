import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.first_order import add_lora
from benchmarks.llm.models import random_model
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record
from benchmarks.llm.scoring import EncoderScorer, classifier
from benchmarks.llm.tasks import task
from benchmarks.pretrain import text
from benchmarks.pretrain.models import config
from benchmarks.problems.encoder import SentenceClassifier
from benchmarks.training.encoders import Encoder
from benchmarks.training.equal_evaluations import Variant, grid
from benchmarks.training.heads import Part, accuracy, train
from dpzero_theory.curvature import encoder
from dpzero_theory.optim.private import make_from_seed_not_private

SENTENCES = [f"who {verb} the {thing} ?" for verb in ("made", "saw", "really was") for thing in ("film", "war", "moon")]
N, PAD = 60, 1


@pytest.fixture(scope="module")
def prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    words = text.tokenizer("roberta", tmp_path_factory.mktemp("words") / "pairs.json", SENTENCES)
    return Prompter(task("trec"), "encoder", words, 32)


def module(prompter: Prompter) -> SentenceClassifier:
    return classifier(random_model(config("roberta", 16), "encoder", seed=0), prompter, PAD)


@pytest.mark.parametrize(
    ("weights", "d", "k", "difference"),
    [
        ("lora", 1024, 4, "central"),
        ("lora", 1024, 3, "forward"),
        ("body", 6592, 1, "central"),
        ("body", 6592, 8, "central"),
    ],
)
def test_every_setting_is_the_librarys_run(prompter: Prompter, weights: str, d: int, k: int, difference: str) -> None:
    """Training many settings at once gives, for each setting, the weights of the library's own run, in float32.

    Texts have several lengths, and there are more points than are evaluated in one pass.
    """
    records = [Record({"text": SENTENCES[index % 9]}, label=index % 6) for index in range(N)]
    examples = prompter.examples(records)
    ids = [torch.tensor(example.ids) for example in examples]
    assert len({len(row) for row in ids}) > 1
    part = Part(pad_sequence(ids, batch_first=True, padding_value=PAD), torch.tensor([r.label for r in records]))
    head = Encoder(module(prompter), PAD, weights)
    assert sum(value.numel() for value in head.start) == 6 * 16 + d
    plans = grid(Variant(k, difference=difference), 8, N, (0.5, 4.0), (0.003, 0.01, 0.03), 16)
    found = train(head, part, plans, seed=3)
    for index in (0, 5):
        own = module(prompter)
        if weights == "lora":
            add_lora(own, Configuration(method="lora", seed=0))
        else:
            encoder.train(own, weights)
        make_from_seed_not_private(
            own, EncoderScorer(PAD, 16).losses, examples, plans[index], seed=3, collate=list, micro_batch=N
        ).run()
        expected = [p for _, p in sorted(own.named_parameters()) if p.requires_grad]
        moved = max(float((p.detach() - start).abs().max()) for p, start in zip(expected, head.start, strict=True))
        apart = max(float((p.detach() - values[index]).abs().max()) for p, values in zip(expected, found, strict=True))
        assert apart < 1e-3 * moved
        right = EncoderScorer(PAD, 16).scores(own, examples).argmax(dim=1) == part.y
        assert accuracy(head, [values[index, None] for values in found], part) == [share(right)]


def share(right: Tensor) -> float:
    return float(right.double().mean())
