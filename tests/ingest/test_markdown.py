from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.ingest import read_documents
from bounded_retrieval.ingest.markdown import parse_markdown


def outline(text: str):
    """The title, and each section's path and text."""
    parsed = parse_markdown(text, "stem")
    return parsed.title, [(section.path, section.text) for section in parsed.sections]


def test_sections_carry_their_headings():
    """The first heading of level 1 is the title and in no path; deeper headings form the paths."""
    text = "# Guide\n\nIntro.\n\n## Install\n\nAll.\n\n### Linux ###\n\napt.\n\n## Use\n\nRun.\n"
    sections = [
        ((), "\nIntro.\n"),
        (("Install",), "\nAll.\n"),
        (("Install", "Linux"), "\napt.\n"),
        (("Use",), "\nRun.\n"),
    ]
    assert outline(text) == ("Guide", [(path, body.strip("\n")) for path, body in sections])


def test_a_second_title_heading_is_a_section():
    """Only the first heading of level 1 is the title; others head sections, even with the same words."""
    assert outline("# A\none\n# A\ntwo\n# B\n## C\nthree") == (
        "A",
        [((), "one"), (("A",), "two"), (("B", "C"), "three")],
    )


def test_the_file_name_is_the_title_where_no_heading_is():
    """Without a heading of level 1 the file's stem is the title."""
    assert outline("## Only\ntext") == ("stem", [(("Only",), "text")])


def test_underlined_headings_count():
    """A line underlined by === or --- is a heading; a rule, a table and a list item are not."""
    text = "Guide\n=====\nIntro\n\nPart *one*\n---\nText\n\n---\n\n| a |\n|---|\n\n- item\n---\nend"
    title, sections = outline(text)
    assert title == "Guide"
    assert [path for path, _ in sections] == [(), ("Part one",)]
    assert "- item\n---\nend" in sections[1][1]


@pytest.mark.parametrize(
    "block",
    [
        "```bash\n# no heading\n```",
        "```text\nprint ```\n# no heading\n```",
        "~~~\n# no heading\n```\n# nor this\n~~~",
        "````md\n```\n# no heading\n```\n# nor this\n````",
        "1. item\n\n     ```sh\n     # no\n# heading\n     ```",
        "- ```sh\n# no heading\n  ```",
        "<!-- a comment\n# no heading\n-->",
        "<pre>\n# no heading\n</pre>",
        "    # indented code",
        "#hashtag and ####### seven",
        "`` ``` `` is inline",
    ],
)
def test_code_and_comments_hold_no_headings(block):
    """A number sign inside code, a comment or raw HTML is text, and the heading after it is found again."""
    _, sections = outline(f"# T\n\n{block}\n\n## After\n\nx")
    assert sections == [((), block), (("After",), "x")]


def test_code_keeps_its_indentation():
    """Text between headings is kept as it was written."""
    code = "```python\nif x:\n\n    return 1\n```"
    assert outline(f"# T\n{code}")[1] == [((), code)]


def test_front_matter_is_left_out_and_may_give_the_title():
    """YAML and TOML front matter is no text; its title serves where no heading of level 1 does."""
    assert outline('---\ntitle: "My page"\ntags: [a]\n---\ntext') == ("My page", [((), "text")])
    assert outline("+++\ntitle = 'My page'\n+++\n# Guide\ntext") == ("Guide", [((), "text")])
    assert outline("---\ntitle:\nother: x\n---\ntext") == ("stem", [((), "text")])
    assert outline("---\n\ntext\n\n---\nmore")[1] == [((), "---\n\ntext\n\n---\nmore")]


def test_headings_lose_their_markup():
    """Links, emphasis, code marks and anchors are not part of a heading's words."""
    assert outline("## [Install](#i)  `pip` **now** ##\nx")[1] == [(("Install pip now",), "x")]
    assert outline("## [![logo](a.png)](https://x.org) C# {#top}\nx")[1] == [(("logo C#",), "x")]


def test_headings_without_text_are_kept_where_nothing_follows_below():
    """A heading that heads nothing is a unit of its own; one with deeper headings lives on in their paths."""
    assert outline("# T\n## A\n### B\n## C")[1] == [(("A", "B"), "B"), (("C",), "C")]
    assert outline("# Alone") == ("Alone", [((), "Alone")])
    assert outline("#\n\n##\n")[1] == []


GUIDE = "# Guide\n\nIntro words.\n\n## Install\n\nRun the installer.\n\n## Use\n\nPress the button.\n"


def test_an_edit_changes_only_its_own_section(make_files):
    """Ids hold no positions: editing or adding one section leaves all others' ids as they were."""

    def ids(text: str) -> dict[str, str]:
        folder = make_files({"guide.md": text})
        return {unit.metadata.get("section", ""): unit.id for unit in read_documents([folder])}

    before = ids(GUIDE)
    edited = ids(GUIDE.replace("Run the installer.", "Run it twice. " * 100))
    grown = ids(GUIDE.replace("## Install", "## Before\n\nUnpack.\n\n## Install"))
    assert {key for key in before if before[key] != edited[key]} == {"Install"}
    assert {key: grown[key] for key in before} == before
    assert ids(GUIDE) == before


@given(st.lists(st.tuples(st.integers(1, 3), st.text("ab c\n.", max_size=300)), max_size=6), st.integers(100, 400))
def test_no_word_of_a_document_is_lost(parts, chunk_chars):
    """Every word of every section is in some unit, units are bounded, and a second reading gives the same."""
    from bounded_retrieval.ingest.splitting import to_documents

    text = "".join(f"{'#' * level} H{number}\n{body}\n" for number, (level, body) in enumerate(parts))
    units = to_documents(parse_markdown(text, "t"), "t.md", chunk_chars)
    words = {word for unit in units for word in unit.page_content.split()}
    assert words >= {word for _, body in parts for word in body.split()}
    assert all(len(unit.page_content) <= chunk_chars for unit in units)
    assert units == to_documents(parse_markdown(text, "t"), "t.md", chunk_chars)
