from __future__ import annotations

import time

import pytest

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest.web import decode_html, parse_html

BROWSERS_LATIN = b'<meta charset="%s"><p>don\x92t pay \x80 5'


def sections(markup: str):
    """Each section's path and text of a page titled ``T``."""
    return [(section.path, section.text) for section in parse_html(f"<title>T</title>{markup}", "stem").sections]


def test_a_head_without_its_end_tag_hides_no_text():
    """The end tag of the head is optional: the body's text is read, and nothing of the head."""
    markup = "<!DOCTYPE html><html><head><title>T</title><meta charset=utf-8><link rel=x><style>a{}</style><body><p>All"
    parsed = parse_html(markup, "stem")
    assert (parsed.title, [section.text for section in parsed.sections]) == ("T", ["All"])


@pytest.mark.parametrize("left_out", ["<nav>m</nav>", "<div hidden>m</div>", "<h2 hidden>m</h2>", "<dialog>m</dialog>"])
def test_a_block_left_out_still_parts_words(left_out):
    """The words before and after a block that is left out do not become one."""
    assert sections(f"<div>pump{left_out}Check</div>") == [((), "pump\n\nCheck")]


@pytest.mark.parametrize("name", ["center", "legend", "optgroup", "hgroup", "menu", "search"])
def test_blocks_part_words(name):
    """Text inside an element that stands on lines of its own does not run into the next."""
    assert sections(f"<{name}>Pump</{name}><{name}>Valve</{name}>")[0][1].split() == ["Pump", "Valve"]


def test_controls_and_pictures_left_out_part_words():
    """A button in a line is left out and a blank stays, while a script between letters leaves none."""
    assert sections("<p>pump<button>x</button>Check<script>x</script>ed") == [((), "pump Checked")]


def test_line_breaks_and_blocks_in_headings_and_titles_part_words():
    """A heading of several lines is one line with blanks between its words."""
    assert sections("<h2>HX-200<br>Reset</h2><p>x") == [(("HX-200 Reset",), "x")]
    assert sections("<h2><div>Alpha</div><div hidden>m</div>Beta</h2><p>x") == [(("Alpha Beta",), "x")]


def test_preformatted_text_keeps_its_lines_and_hides_what_is_hidden():
    """Breaks and blocks in preformatted text are line ends; buttons and hidden elements are left out of it."""
    assert sections("<pre>step 1<br>step 2<br><br>end</pre>") == [((), "step 1\nstep 2\n\nend")]
    assert sections("<pre>x<div>y</div><div>z\n</div><i>a</i>  b</pre>") == [((), "x\ny\nz\na  b")]
    assert sections("<pre>code<button>Copy</button><span hidden>m</span><script>m</script></pre>") == [((), "code")]
    assert sections("<pre><table><tr><td>1<td>a<tr><td>2<td>b</table></pre>") == [((), "1 a\n2 b")]


@pytest.mark.parametrize("style", ["display:none", "color: red; DISPLAY : none !important;", "visibility:hidden"])
def test_what_a_style_hides_is_left_out(style):
    """An element hidden by its own style is not read."""
    assert sections(f'<div style="{style}">m</div><p>x') == [((), "x")]


def test_other_styles_hide_nothing():
    """A style that only looks like a hiding one leaves the text in."""
    assert sections('<div style="x-display:none-such; display: block">m</div>') == [((), "m")]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p hidden>m<p>seen<p>also", "seen\n\nalso"),
        ("<p hidden><b>m<p>seen</p>tail", "seen\n\ntail"),
        ("<p hidden>m<p hidden>m<div>seen</div>", "seen"),
        ("<ul><li hidden>m<ul><li>m</ul><li>seen</ul>", "- seen"),
        ("<dl><dt hidden>m<dd>seen</dl>", "seen"),
        ("<table><tr><td hidden>m<br><td>A<td>B<tr hidden><td>m<tr><td>C</table>", "A | B\nC"),
        ("<p hidden>m<template><p>m</p></template></p><p>seen", "seen"),
    ],
)
def test_a_hidden_element_ends_where_its_end_tag_may_be_missing(markup, text):
    """What follows a hidden paragraph, list item or cell without an end tag is read."""
    assert sections(markup) == [((), text)]


def test_a_hidden_main_element_is_not_the_main_content():
    """The first main element that is displayed is read, and the page where none is."""
    assert sections("<main hidden>old</main><main>seen</main>") == [((), "seen")]
    assert sections("<template><main>old</main></template><p>a</p><main>seen</main>") == [((), "seen")]
    assert sections('<div style="display:none"><main>old</main></div><p>seen') == [((), "seen")]


def test_headings_keep_the_words_of_buttons_and_of_links_that_are_all_they_have():
    """A question in a button is a heading, inside or around it; a link to itself counts where it holds all words."""
    assert sections("<h3><button>How?</button></h3><p>x") == [(("How?",), "x")]
    assert sections("<button><h3>How?</h3></button><p>x") == [(("How?",), "x")]
    assert sections("<h3>A<button hidden>m</button></h3><p>x") == [(("A",), "x")]
    assert sections('<h2><a class="anchor">Install</a></h2><p>x') == [(("Install",), "x")]
    assert sections('<h2>Install<a class="anchor">link</a></h2><p>x') == [(("Install",), "x")]
    assert sections('<h2>!<a class="anchor">#</a></h2><p>x') == [(("!",), "x")]


def test_a_heading_above_one_without_words_is_kept():
    """A heading whose only deeper heading is a picture is a unit of its own."""
    assert sections("<h2>Kept</h2><h3><img></h3>") == [(("Kept",), "Kept")]


@pytest.mark.parametrize("label", [b"iso-8859-1", b"latin1", b"us-ascii", b"windows-1252"])
def test_declared_latin_encodings_are_read_as_browsers_do(label):
    """Pages that call themselves Latin-1 hold the quotes and the euro sign of Windows."""
    assert decode_html(BROWSERS_LATIN % label, "a.html").endswith("don\u2019t pay \u20ac 5")


def test_latin_text_that_windows_has_no_letters_for_is_still_read():
    """A byte that Windows' code page leaves out is read as the declaration says."""
    assert decode_html(b'<meta charset="iso-8859-1">\xe9\x81', "a.html").endswith("\xe9\x81")


@pytest.mark.parametrize(
    "label", [b"utf-16", b"UTF-16LE", b"utf-32", b"utf-7", b"cp037", b"hex", b"raw_unicode_escape"]
)
def test_a_declared_encoding_that_the_declaration_is_not_in_is_ignored(label):
    """A declaration readable as ASCII names no UTF-16 and the like; the page is refused like any that is not UTF-8."""
    page = b'<meta charset="' + label + b'"><p>caf\xe9 is open</p>'
    for data in (page, page + b" "):
        with pytest.raises(SourceError, match="not UTF-8"):
            decode_html(data, "a.html")


@pytest.mark.parametrize("part", ["<p hidden>a<p>b", "<li hidden><b>a", "<main hidden>a", "<button>a", "<pre>a<br>"])
def test_hidden_and_unended_elements_are_read_in_linear_time(part):
    """Eight thousand elements within each other are read within seconds."""
    started = time.perf_counter()
    sections(part * 8_000 + "<p>end")
    assert time.perf_counter() - started < 10
