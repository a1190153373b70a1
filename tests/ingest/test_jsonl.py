from __future__ import annotations

import json
from pathlib import Path

import pytest

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.ingest.jsonl import MAX_LINE_BYTES


def corpus(folder: Path, *lines: object, name: str = "corpus.jsonl") -> Path:
    """Write lines as they are if they are text or bytes, else as JSON."""
    raw = [line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines]
    path = folder / name
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in raw))
    return path


def read(path: Path | list[Path]):
    """All units of one path or several."""
    return list(read_documents([path] if isinstance(path, Path) else path))


def test_a_beir_line_becomes_a_unit_with_its_own_id(tmp_path):
    """Id, text and title are taken over; metadata and other keys become metadata, with the file as source."""
    line = {"_id": "d1", "title": " HX ", "text": " Body ", "metadata": {"year": 2024}, "url": "u", "lang": None}
    (unit,) = read(corpus(tmp_path, line))
    assert (unit.id, unit.page_content) == ("d1", " Body ")
    assert unit.metadata == {"title": "HX", "year": 2024, "url": "u", "lang": None, "source": "corpus.jsonl"}


def test_ids_may_be_whole_numbers_and_stand_under_either_key(tmp_path):
    """`id` serves where `_id` is missing, and a whole number becomes its digits."""
    units = read(
        corpus(tmp_path, {"id": 7, "text": "a"}, {"_id": 0, "text": "b"}, {"_id": "x", "id": "y", "text": "c"})
    )
    assert [unit.id for unit in units] == ["7", "0", "x"]
    assert units[2].metadata["id"] == "y"


def test_a_unit_keeps_the_source_it_names_and_metadata_has_the_last_word(tmp_path):
    """A unit's own source is not overwritten, and `metadata` wins over a top-level key of the same name."""
    line = {"_id": "a", "text": "t", "source": "outer", "metadata": {"source": "manuals/hx.md"}}
    assert read(corpus(tmp_path, line))[0].metadata == {"source": "manuals/hx.md"}


def test_long_units_are_kept_whole(tmp_path):
    """A unit of ten million characters is one unit under its own id, whatever the unit size."""
    (unit,) = read_documents([corpus(tmp_path, {"_id": "big", "text": "word " * 2_000_000})], chunk_chars=100)
    assert unit.id == "big"
    assert len(unit.page_content) == 10_000_000


def test_byte_order_mark_blank_lines_and_windows_line_ends_are_accepted(tmp_path):
    """A BOM, blank lines and CRLF change nothing."""
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"_id": "a", "text": "x"}\r\n\r\n   \r\n{"_id": "b", "text": "y"}\r\n')
    assert [(unit.id, unit.page_content) for unit in read(path)] == [("a", "x"), ("b", "y")]


def test_characters_that_cannot_be_stored_are_replaced(tmp_path):
    """NUL and lone surrogates written as JSON escapes become U+FFFD in text, id, title and metadata."""
    escaped = r'{"_id": "a\ud800", "title": "t\u0000", "text": "x\udfffy\u0000", "k\ud800": ["\ud800"]}'
    (unit,) = read(corpus(tmp_path, escaped))
    assert (unit.id, unit.page_content) == ("a\ufffd", "x\ufffdy\ufffd")
    assert unit.metadata == {"title": "t\ufffd", "k\ufffd": ["\ufffd"], "source": "corpus.jsonl"}


def test_surrogate_pairs_stay_characters(tmp_path):
    """A pair of escapes that forms one character is that character."""
    assert read(corpus(tmp_path, r'{"_id": "a", "text": "\ud83d\ude00"}'))[0].page_content == "\U0001f600"


def test_numbers_outside_json_become_text(tmp_path):
    """NaN, Infinity and whole numbers beyond 64 bits in metadata become text."""
    line = '{"_id": "a", "text": "t", "metadata": {"n": NaN, "i": -Infinity, "e": 1e999, "b": 123456789012345678901}}'
    metadata = read(corpus(tmp_path, line))[0].metadata
    assert (metadata["n"], metadata["i"], metadata["e"]) == ("nan", "-inf", "inf")
    assert metadata["b"] == "123456789012345678901"


BAD_LINES = {
    "not JSON": ('{"_id": "b", "text": ', "not JSON"),
    "not an object": ("[1]", "expected a JSON object (got a list)"),
    "null": ("null", "expected a JSON object (got null)"),
    "NaN alone": ("NaN", "expected a JSON object (got a number)"),
    "nested too deeply": ('{"_id": "b", "text": "t", "k": ' + "[" * 100_000, "nested too deeply"),
    "number too long": ('{"_id": ' + "1" * 5_000 + ', "text": "t"}', "a number is too long"),
    "no text": ({"_id": "b", "title": "t"}, "no text"),
    "null text": ({"_id": "b", "text": None}, "no text"),
    "blank text": ({"_id": "b", "text": " \n\u00a0"}, "no text (it is blank)"),
    "text no text": ({"_id": "b", "text": 3}, "text must be text (got a number)"),
    "no id": ({"text": "t"}, "no id"),
    "blank id": ({"_id": "  ", "text": "t"}, "no id"),
    "id a fraction": ({"_id": 1.5, "text": "t"}, "id must be text or a whole number (got a number)"),
    "id NaN": ('{"_id": NaN, "text": "t"}', "id must be text or a whole number (got a number)"),
    "id a truth value": ({"_id": True, "text": "t"}, "id must be text or a whole number (got true or false)"),
    "title no text": ({"_id": "b", "title": ["t"], "text": "t"}, "title must be text (got a list)"),
    "metadata no object": ({"_id": "b", "text": "t", "metadata": "x"}, "metadata must be an object (got text)"),
    "cut off": ('{"_id": "b", "text": "x"', "not JSON (Expecting ',' delimiter, column 25)"),
    "invalid UTF-8": (b'{"_id": "b", "text": "caf\xe9"}', "byte 25 (0xe9): not UTF-8"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_named_with_file_and_number(tmp_path, line, message):
    """The error is one short line with the file, the line number and what is wrong; earlier units came through."""
    path = corpus(tmp_path, {"_id": "a", "text": "t"}, "", line)
    stream = read_documents([path])
    assert next(stream).id == "a"
    with pytest.raises(SourceError) as caught:
        next(stream)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 120


def test_a_line_over_the_limit_is_refused(tmp_path):
    """A line longer than the declared limit is refused by number before it is read whole."""
    path = corpus(tmp_path, {"_id": "a", "text": "t"}, {"_id": "b", "text": "x" * MAX_LINE_BYTES})
    with pytest.raises(SourceError, match=f"line 2: longer than {MAX_LINE_BYTES} bytes"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\n  \n"])
def test_a_file_without_units_is_an_error(tmp_path, content):
    """An empty file, or one of blank lines, is named."""
    path = tmp_path / "none.jsonl"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"none\.jsonl: empty"):
        read(path)


def test_a_repeated_unit_comes_once(tmp_path):
    """The same id with the same content, in one file or in two, is one unit."""
    line = {"_id": "a", "title": "T", "text": "t", "metadata": {"k": 1}}
    first, second = corpus(tmp_path, line, line), corpus(tmp_path, line, name="more.jsonl")
    assert [unit.id for unit in read([first, second])] == ["a"]


@pytest.mark.parametrize("change", [{"text": "other"}, {"title": "other"}, {"metadata": {"tenant": "b"}}])
def test_one_id_for_two_units_is_refused(tmp_path, change):
    """The same id with another text, title or metadata is an error that names both lines."""
    line = {"_id": "a", "title": "T", "text": "t", "metadata": {"tenant": "a"}}
    path = corpus(tmp_path, line, {**line, **change})
    with pytest.raises(SourceError, match=r"line 2: id 'a' was used by another unit .* line 1"):
        read(path)


def test_one_id_for_two_units_is_refused_across_files(tmp_path):
    """Ids are unique over everything read, not only within one file."""
    first = corpus(tmp_path, {"_id": "a", "text": "t"})
    second = corpus(tmp_path, {"_id": "a", "text": "u"}, name="more.jsonl")
    with pytest.raises(SourceError, match=r"more\.jsonl, line 1: id 'a' .*corpus\.jsonl, line 1$"):
        read([first, second])
