from xml.etree import ElementTree

import pytest

from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.plots import PLOTS, plot

EVIDENCE: dict[str, dict[str, object]] = {
    "noise-law": {"quantiles": [-2.0, -1.0, 0.0, 1.0, 2.0]},
    "noise-size": {"worlds": {"as claimed": 1.0, "batch < n": 0.5}},
    "sensitivity": {"moves": [[1.0, 2.0], [3.0, 2.0]]},
    "batches": {"sizes": [3, 4, 5], "expected": 4.0},
    "attack": {"first": [0.5, 0.7], "second": [-0.5, 0.1], "pairs_to_see": {"0.5": 64, "0.9": None}},
}


@pytest.mark.parametrize("name", PLOTS)
def test_pictures_are_whole_and_explained(name: str) -> None:
    found = plot(name, EVIDENCE[name])
    assert found is not None
    svg, caption = found
    assert ElementTree.fromstring(svg).attrib["aria-label"]
    assert caption.startswith("Blue")


def test_what_has_no_evidence_has_no_picture() -> None:
    assert plot("steps", {}) is plot("attack", {}) is plot("attack", {"first": []}) is None
    assert set(PLOTS) <= {check.name for check in every()}
