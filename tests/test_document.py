from html.parser import HTMLParser
from xml.etree import ElementTree

from dpzero_theory.document import document, picture


def test_a_page_is_whole_and_needs_nothing_else(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "x.html").write_text('{% extends "base.html" %}{% block content %}<p>{{ said | twice }}{% endblock %}')
    found = document("x.html", title="A & b", width=46, folder=tmp_path, filters={"twice": lambda x: x + x}, said="<i>")
    assert "<title>A &amp; b</title>" in found
    assert "<h1>A &amp; b</h1>" in found
    assert "max-width: 46rem" in found
    assert "<p>&lt;i&gt;&lt;i&gt;" in found
    assert not {"src=", "href=", "@import"} & set(found.split())
    assert "<footer>" not in found
    assert "<footer>Written by <code>a &lt; b</code>" in document(
        "base.html", title="", width=1, folder=tmp_path, command="a < b"
    )
    HTMLParser().feed(found)


def test_a_picture_is_svg_with_words_that_can_be_read() -> None:
    drawn = picture(lambda axes: axes.set(xlabel="across"), label='up & "down"')
    root = ElementTree.fromstring(drawn)
    assert root.attrib["aria-label"] == 'up & "down"'
    assert "across" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn == picture(lambda axes: axes.set(xlabel="across"), label='up & "down"')
