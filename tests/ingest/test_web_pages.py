from __future__ import annotations

import pytest

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.ingest.web import parse_html

PAGE = """<!DOCTYPE html>
<html><head><title>Install &mdash; Guide</title><style>p { color: red }</style></head>
<body>
<header><a href="/">Logo</a></header><nav><a>Home</a></nav>
<article>
  <header><h1>Install<a class="headerlink" href="#i">&para;</a></h1></header>
  <p>Intro   <b>bold</b>, then
     more<br>next line</p>
  <h2>Linux</h2>
  <ul><li>one</li><li><p>two</p></li></ul>
  <pre><code>if x:
    run</code></pre>
  <table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>
  <!-- comment --><script>alert(1)</script><p hidden>unseen</p>
</article>
<footer>Copyright</footer>
</body></html>"""


def outline(markup: str):
    """The title, and each section's path and text."""
    parsed = parse_html(markup, "stem")
    return parsed.title, [(section.path, section.text) for section in parsed.sections]


def test_a_page_is_read_as_a_reader_sees_it():
    """Words, lists, tables and code come in order by heading; menus, scripts, styles and the page's frame do not."""
    title, sections = outline(PAGE)
    assert title == "Install \u2014 Guide"
    assert sections == [
        ((), "Intro bold, then more\nnext line"),
        (("Linux",), "- one\n- two\n\nif x:\n    run\n\nA | B\n1 | 2"),
    ]


def test_only_the_marked_main_content_is_read():
    """Where a page marks its main content, the rest is left out; an empty main element is passed over."""
    assert outline("<p>aside</p><main><h1>T</h1><p>text</p></main>") == ("T", [((), "text")])
    assert outline('<p>aside</p><div role="main"><p>text</p></div>')[1] == [((), "text")]
    assert outline("<main></main><p>text</p>")[1] == [((), "text")]


def test_the_title_falls_back_to_the_heading_and_the_file():
    """Title element, else first heading, else file name; an image's own title is none of them."""
    assert outline("<h1>Head</h1>x") == ("Head", [((), "x")])
    assert outline("<svg><title>icon</title></svg><p>x</p>")[0] == "stem"


def test_a_heading_that_says_more_than_the_title_stays_in_the_path():
    """A first heading that is not part of the page title is a section heading."""
    assert outline("<title>My site</title><h1>HX-200</h1><p>x</p>") == ("My site", [(("HX-200",), "x")])


@pytest.mark.parametrize(
    "markup", ["docs/page.html", "https://example.org", '<?xml version="1.0"?><html><p>x</p></html>']
)
def test_odd_markup_raises_no_warning(markup):
    """Text that looks like a path or an address, and XHTML, are read without a warning."""
    assert outline(markup)[1]


def test_deep_nesting_is_no_recursion():
    """Ten thousand nested elements are read like any other page."""
    assert outline("<div>" * 10_000 + "a<p>b</p>c")[1] == [((), "a\n\nb\n\nc")]


def test_a_declared_encoding_is_honoured_where_the_page_is_not_utf8(make_files):
    """A page that is not UTF-8 is read by the encoding it declares, and refused where it declares none that fits."""
    folder = make_files({"a.html": '<meta charset="iso-8859-1"><p>caf\u00e9</p>'.encode("latin-1")})
    assert [unit.page_content for unit in read_documents([folder])] == ["caf\u00e9"]
    for markup in ["<p>caf\u00e9", '<meta charset="utf-8"><p>caf\u00e9', '<meta charset="klingon"><p>caf\u00e9']:
        path = make_files({"b.html": markup.encode("latin-1")}, "bad") / "b.html"
        with pytest.raises(SourceError, match=rf"b\.html: byte {len(markup) - 1} \(0xe9\): not UTF-8"):
            list(read_documents([path]))
