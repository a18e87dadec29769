from html.parser import HTMLParser

from dpzero_theory.document import document


def test_a_page_is_whole_and_needs_nothing_else() -> None:
    text = document("A & b", ["<p>one"], command="python -m x <y>", width=46, style="th { width: 1rem; }")
    assert "<title>A &amp; b</title>" in text
    assert "<h1>A &amp; b</h1>" in text
    assert "max-width: 46rem" in text
    assert "th { width: 1rem; }</style>" in text
    assert text.endswith("<footer>Written by python -m x &lt;y&gt;</footer></html>")
    assert "{{" not in text
    assert "http" not in text
    HTMLParser().feed(text)
