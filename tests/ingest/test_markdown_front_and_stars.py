from __future__ import annotations

import time

import pytest

from bounded_retrieval.ingest.markdown import parse_markdown


def outline(text: str):
    """The title, and each section's path and text."""
    parsed = parse_markdown(text, "stem")
    return parsed.title, [(section.path, section.text) for section in parsed.sections]


@pytest.mark.parametrize(
    "front",
    [
        "---\ntitle: X\n...\n",
        "---\ntitle: X\n---\n",
        "---\ntags:\n- a\n-\n\ntitle: X\nmore: [\n  a\n]\ndate created: 1\nfold: >\n  Words here\n---\n",
        '---\nkey: 1\n# note\n"quoted": 2\ntitle: X\n---\n',
        '+++\ntext = """\nwords\n"""\ntitle = "X"\n+++\n',
    ],
)
def test_front_matter_is_told_by_its_keys(front):
    """Both end marks of YAML, lists, comments, folded text and TOML's long strings are front matter."""
    assert outline(f"{front}\nbody\n\n---\n\nmore") == ("X", [((), "body\n\n---\n\nmore")])


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nWarning: never open the case.\n\nMore words.\n\n---\n\nend",
        "---\nWarning: never open the case.\nMore words.\n\n---\n\nend",
        "---\n\nWarning: never open the case.\n\n---\n\nend",
        "---\nhttps://example.org\n\n---\n\nend",
    ],
)
def test_prose_between_two_rules_is_text(text):
    """A page that opens with a rule and prose that begins like a key loses none of it."""
    assert outline(text) == ("stem", [((), text)])


def test_an_underlined_heading_below_a_rule_is_no_key():
    """The equals signs that underline a heading do not make its words a key."""
    _, sections = outline("---\nSafety\n======\nNever open it.\n\n---\n\nend")
    assert "Safety" in sections[0][1]
    assert "Never open it." in sections[0][1]


@pytest.mark.parametrize(
    ("heading", "plain"),
    [
        ("The buffer holds 2**10 or 3*4*5 entries", "The buffer holds 2**10 or 3*4*5 entries"),
        ("5 * 3 * 2 and * one", "5 * 3 * 2 and * one"),
        ("`*args` and `**kwargs`", "*args and **kwargs"),
        ("**HX-200** (*new*), ***both***", "HX-200 (new), both"),
        ("***one** two*", "one two"),
        ("(**a**) *a", "(a) *a"),
        ("2**10 is *big*", "2**10 is big"),
        ("这是**重点**内容", "这是重点内容"),
    ],
)
def test_only_paired_stars_are_taken_from_headings(heading, plain):
    """Emphasis goes; powers, products, lone stars and names with stars stay as they are."""
    assert outline(f"## {heading}\nx")[1] == [((plain,), "x")]


def test_a_heading_above_an_empty_one_is_kept():
    """A heading with only an empty deeper heading below it is a unit; one that has text or subsections is not again."""
    assert outline("# M\n\n## Gone\n\n###\n")[1] == [(("Gone",), "Gone")]
    assert outline("# M\n##\n")[1] == [((), "M")]
    assert outline("## A\n###\n###\n## B\nx")[1] == [(("A",), "A"), (("B",), "x")]
    assert outline("## A\ntext\n###\n## B\nx")[1] == [(("A",), "text"), (("B",), "x")]
    assert outline("## A\n###\n### C\nx")[1] == [(("A", "C"), "x")]
    assert outline("## A\n### C\nx\n###\n")[1] == [(("A", "C"), "x")]


@pytest.mark.parametrize("text", ["## " + "*a " * 50_000, "## " + "**a* " * 50_000, "---\na: b\n" + "a b c\n" * 50_000])
def test_stars_and_front_matter_are_read_in_linear_time(text):
    """A long line of unpaired stars or a long file of near keys takes no more than seconds."""
    started = time.perf_counter()
    outline(text)
    assert time.perf_counter() - started < 10
