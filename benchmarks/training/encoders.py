"""A sentence encoder as a classifier (`heads.Head`) whose features are token ids, and whose own weights or adapters are
trained, too.

`torch.vmap` over the parameters evaluates several points x +- lambda u_k in one pass, where x are the parameters, u_k
the directions of a step and lambda is the smoothing. The layers below the first trained weight run once for all of
them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.first_order import add_lora
from benchmarks.problems.encoder import SentenceClassifier, train
from benchmarks.training.heads import Part

POINTS, PLACES = 18, 288
"""One forward pass evaluates at most POINTS points x +- lambda u_k together, and at most PLACES pairs of a text and a
point."""


class Encoder:
    """A classifier of texts, given as rows of token ids that are padded on the right.

    pad: the id that pads. weights: what is trained in addition to the label vectors, one of `encoder.SUBSETS`, or
    `lora` for adapters of rank 8 beside the query and value matrices. The module that is given is changed and must not
    be used again.
    """

    def __init__(self, module: SentenceClassifier, pad: int, weights: str) -> None:
        if weights == "lora":
            add_lora(module, Configuration(method="lora", seed=0))
        else:
            train(module, weights)
        self._module, self._pad = module.eval(), pad
        trained = {name: p.detach() for name, p in sorted(module.named_parameters()) if p.requires_grad}
        self._names, self.start = tuple(trained), tuple(trained.values())

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        lengths = (x != self._pad).sum(dim=1)
        order = lengths.argsort()
        rows = torch.split(order, PLACES // min(POINTS, len(parameters[0])))
        found = [self._passes(parameters, x[part, : int(lengths[part].max())]) for part in rows]
        return torch.cat(found, dim=1)[:, order.argsort()]

    def differences(self, part: Part, parameters: Sequence[Tensor], shifts: Sequence[Tensor], rule: str) -> Tensor:
        if rule == "exact":
            raise ValueError("the encoder has no exact derivatives here; take central or forward differences")
        pairs = [(p[:, None], h) for p, h in zip(parameters, shifts, strict=True)]
        ends = [(p + h, p - h if rule == "central" else p) for p, h in pairs]
        logits = self.logits([torch.cat([one.flatten(0, 1), other.flatten(0, 1)]) for one, other in ends], part.x)
        y = part.y.expand(len(logits), -1)
        losses = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(len(logits), -1)
        settings, k = ends[0][0].shape[:2]
        there, other = (
            losses[: settings * k].view(settings, k, -1),
            losses[settings * k :].view(settings, -1, len(part.y)),
        )
        return (there - other).permute(2, 0, 1)

    def _passes(self, parameters: Sequence[Tensor], ids: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": (ids != self._pad).long()}

        def at(*values: Tensor) -> Tensor:
            found: Tensor = functional_call(self._module, dict(zip(self._names, values, strict=True)), (), inputs)
            return found

        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention does not work on stacked parameters
            parts = zip(*(torch.split(p, POINTS) for p in parameters), strict=True)
            return torch.cat([torch.vmap(at)(*values) for values in parts])
