"""All fuzz targets by name, with the documents that a fuzzer begins with and the words that it may put in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzz_shapes import CHARACTERS, NUMBERED, shaped

Run = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """A function that reads bytes, where it is defined, what it begins with, and the form that wraps a long input.

    Attributes:
        begins: small inputs of the kind that the reader is made for.
        words: what inputs of this kind are made of.
        wraps: texts with ``%s`` in which a long input is put, besides standing alone.
    """

    module: str
    function: str
    begins: Sequence[bytes]
    words: Sequence[str] = ()
    wraps: Sequence[str] = ()

    def large(self, size: int, every: int = 1) -> Iterator[tuple[str, bytes]]:
        """Inputs of about ``size`` bytes by what they are: each shape alone, and inside each wrap one in ``every``."""
        for number, name in enumerate((*CHARACTERS, *NUMBERED)):
            yield name, shaped(name, size)
            for offset, wrap in enumerate(self.wraps):
                if (number + offset) % every == 0:
                    before, after = wrap.encode().split(b"%s")
                    inside = shaped(name, size, in_json=wrap.lstrip("\0\1")[:1] == "{")
                    yield f"{name} in {wrap!r}", before + inside + after

    def load(self) -> Run:
        """The function; its module is imported only now, so that a fuzzer can watch what it imports."""
        run: Run = getattr(importlib.import_module(self.module), self.function)
        return run


_JSON = ('{"', '":', '"}', "[", "]", "null", "true", "1e9", "-1", "NaN", "\\u0000", "\\ud800", ",", "\n")
_HTML = ("<html>", "<title>", "<h1>", "</h1>", "<p>", "<pre>", "<main>", "<table>", "<td>", "<li>", "<!--", "-->", "&amp;", "<svg>", "<header>")  # fmt: skip
_SGML = ("<top>", "</top>", "<num>", "Number:", "<title>", "<desc>", "<DOC>", "</DOC>", "<DOCNO>", "</DOCNO>", "<TEXT>", "</TEXT>", "<!--", "-->", "&lt;")  # fmt: skip
_EDITS = (b"", bytes(range(32)), bytes(range(255, 200, -1)), b"\x01\x03\x05\x02\x04\x01\x07\x03")
_UNIT = '{"_id": "1", "title": "%s", "text": "b", "metadata": {"c": 1}}'
_LINK = '{"subject": "%s", "relation": "led by", "object": "b", "source_unit": "u"}'

_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>/MediaBox[0 0 9 9]>>endobj\n"
    b"4 0 obj<</Length 21>>stream\nBT /F1 9 Tf (a) Tj ET\nendstream endobj\n"
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)

TARGETS: Mapping[str, Target] = {
    "tokenizer": Target(
        "fuzz_values",
        "tokenizer",
        ["Replace the HX-200 battery: v2.3.1, 19th \u00e9 \u6771\u4eac".encode()],
        ("HX-200", "\u2011", "\u0301", "\u6771", "\ufb01", "\u2122", "1990s"),
    ),
    "filters": Target("fuzz_values", "filters", [*_EDITS, bytes([3, 0, 1, 2, 3, 4, 5] * 12)]),
    "path": Target(
        "fuzz_values", "path", [b"HX-200 > maintained by > led by"], (" > ", "->", ">"), ("%s > a", "a > %s")
    ),
    "request": Target(
        "fuzz_values",
        "request",
        [*_EDITS, b'{"query": "a", "policy": "adaptive", "budget": {"max_rows": 3}}'],
        _JSON,
        ('{"query": "%s"}', '{"query": "a", "path": {"start": "%s", "relations": ["a"]}}', '{"query": "a", "%s": 1}'),
    ),
    "run": Target("fuzz_values", "run", _EDITS),
    "scorecard": Target("fuzz_values", "scorecard", _EDITS, _JSON, ('{"factors": [], "%s": 1}',)),
    "jsonl": Target("fuzz_files", "jsonl", [(_UNIT % "a").encode()], _JSON, (_UNIT, '{"_id": "%s", "text": "a"}')),
    "markdown": Target(
        "fuzz_files",
        "markdown",
        [
            b"---\ntitle: a\n---\n# b {#c}\n\ntext [d](e)\n\n```\n# f\n```\n\ng\n===\n",
            b"<!-- a -->\n<pre>\n# b\n</pre>\n- c\n",
        ],
        ("# ", "```", "~~~", "---\n", "===\n", "title:", "<!--", "-->", "<pre>", "</pre>", "](", "\n\n"),
        ("# %s\n\nwords", "---\ntitle: %s\n---\n# a\nb", "words\n\n%s\n\n# a\n\nb"),
    ),
    "text": Target("fuzz_files", "text", [b"Some words.\n\nMore of them.\n- a list\n"]),
    "html": Target(
        "fuzz_files",
        "html",
        [b"<title>a</title><main><h1>b</h1><p>c<table><tr><td>d<td>e</table><pre>f\ng</pre></main>"],
        _HTML,
        ("<title>%s</title><p>a", "<h1>%s</h1>a", "<p title='%s'>a", "<main>%s</main>", "<div>%s<h1>a</h1>b"),
    ),
    "relationships": Target(
        "fuzz_files",
        "relationships",
        [(_LINK % "a").encode() + b'\n{"entity": "a", "name": "A", "source_unit": "u"}\n'],
        _JSON,
        (_LINK, '{"entity": "a", "name": "A", "source_unit": "%s"}'),
    ),
    "calibration": Target("fuzz_files", "calibration", _EDITS, _JSON, ('{"format": "%s"}',)),
    "queries": Target(
        "fuzz_files",
        "queries",
        [
            b'{"_id": "1", "text": "a"}\n',
            b"1\ta\n2\tb\n",
            b"<top>\n<num> Number: 1\n<title> a\n<desc> b\n</top>\n",
            b"<topic number='1'><query>a</query></topic>",
        ],
        (*_JSON, *_SGML, "\t"),
        (
            "<top>%s</top>",
            "<topic number='1'>%s</topic>",
            "<topic number='%s'>a</topic>",
            "1\t%s",
            '{"_id": "1", "text": "%s"}',
        ),
    ),
    "judgements": Target(
        "fuzz_files",
        "judgements",
        [b"1\t2\t1\n", b"query-id\tcorpus-id\tscore\n1\t2\t1\n", b"1 0 2 1\n"],
        ("\t", " 0 ", "1\n"),
        ("1\t%s\t1\n",),
    ),
    "sgml": Target(
        "fuzz_files",
        "sgml",
        [
            b"<DOC>\n<DOCNO>1</DOCNO>\n<TITLE>a</TITLE>\n<TEXT>b &amp; c <!-- d -->\n</TEXT>\n</DOC>\n",
            b"<doc><docno>1</docno>a</doc>",
        ],
        _SGML,
        (
            "<DOC><DOCNO>1</DOCNO>%s</DOC>",
            "<DOC><DOCNO>1</DOCNO><TEXT>%s</TEXT></DOC>",
            "<DOC><DOCNO>1</DOCNO><HL>%s</DOC>",
            "<DOC><DOCNO>%s</DOCNO>a</DOC>",
        ),
    ),
    "csv": Target(
        "fuzz_files",
        "csv",
        [b"query,relevant_ids,id\na,1;2=2,q\nb,3,r\n", b'query,unit_id,grade\n"a, b",1,1\n'],
        (",", '"', "query", "relevant_ids", "unit_id", "grade", "id", "\n", ";", "="),
        ("query,unit_id\n%s,1\n", "query,relevant\na,%s\n", "query,unit_id,%s\na,1\n", '"%s"'),
    ),
    "tsv": Target(
        "fuzz_files", "tsv", [b"query\tunit_id\na\t1\n"], ("\t", "query", "unit_id"), ("query\tunit_id\t%s\na\t1\n",)
    ),
    "beir": Target(
        "fuzz_files",
        "beir",
        [b'{"_id": "1", "text": "a"}\x1e{"_id": "q", "text": "b"}\x1eq\t1\t1\n'],
        (*_JSON, "\t"),
        ('%s\x1e{"_id": "q", "text": "b"}\x1eq\t1\t1\n',),
    ),
    "traces": Target("fuzz_traces", "traces", _EDITS, _JSON, ('{"events": [%s]}', '{"events": [{"event": "%s"}]}')),
    "runs": Target(
        "fuzz_traces",
        "runs",
        [*_EDITS, b"\x00\x00[]", b'\x01\x00{"trail": []}'],
        _JSON,
        ("\x00\x00%s", "\x01\x00%s", '\x01\x00{"trace": {"%s": 1}}'),
    ),
    "pdf": Target(
        "fuzz_files", "pdf", [_PDF], ("obj", "endobj", "stream", "/Length", "/Kids", "<<", ">>", "R"), ("%PDF-1.4\n%s",)
    ),
}
