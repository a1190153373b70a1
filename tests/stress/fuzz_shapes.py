"""Texts of a given size that are known to make parsers slow: one pattern repeated, nested, mixed, never closed."""

from __future__ import annotations

from collections.abc import Mapping

CHARACTERS: Mapping[str, str] = {
    "letter": "a",
    "digit": "1",
    "blank": " ",
    "line end": "\n",
    "backslash": "\\",
    "quote": '"',
    "alternating": "a ",
    "alternating dash": "a-1-",
    "identifiers": "HX-200 ",
    "dashes": "-",
    "stops": ".",
    "path": " > a",
    "accents": "e\u0301",
    "marks": "\u0301",
    "many marks": "a" + "\u0301" * 40,
    "han": "\u6771\u4eac",
    "wide": "\uff28\uff38\uff0d\uff12",
    "ligatures": "\ufb01\ufdfa",
    "trade marks": "a\u2122",
    "emoji": "\U0001f600",
    "nul": "\x00",
    "lines": "some words here\n",
    "empty lines": "a\n\n",
    "blank lines": "a\n \n",
    "sentences": "A word. Another! ",
    "quoted stops": ".'\")",
    "brackets": "[",
    "links": "[a](",
    "braces": "{",
    "parentheses": "()",
    "stars": "*",
    "backticks": "`",
    "hashes": "#",
    "headings": "# a\n",
    "deeper headings": "# a\n## b\n### c\n#### d\n##### e\n###### f\n",
    "underlined": "a\n===\n\n",
    "list": "- a\n",
    "list marks": "- ",
    "fences": "```\n",
    "front matter": "---\n",
    "title lines": "title: a\n",
    "tags": "<b>",
    "divisions": "<div>",
    "paragraphs": "<p>a",
    "ended tags": "</b>",
    "open tags": "<a ",
    "attributes": "a=b ",
    "comments": "<!--",
    "broken comments": "<!-- -- >",
    "closed comments": "<!---->",
    "declarations": "<![",
    "instructions": "<?",
    "entities": "&amp;",
    "open entities": "&",
    "headers": "<header>",
    "headings in html": "<h1>a<b>b</b></h1>",
    "tables": "<table><tr><td>",
    "pre": "<pre>",
    "scripts": "<script>",
    "titles": "<title>",
    "documents": "<DOC>\n<DOCNO>1</DOCNO>\n<TEXT>a</TEXT>\n</DOC>\n",
    "open documents": "<DOC>",
    "texts": "<text>",
    "headlines": "<hl>",
    "topics": "<top>\n<num> Number: 1\n<title> a\n</top>\n",
    "short topics": "<top></top>",
    "open topics": "<top>",
    "numbers": 'id="',
    "objects": "{}\n",
    "lists": "[]\n",
    "json nesting": "[",
    "json objects": '{"a":',
    "cells": "a,",
    "tab cells": "a\t",
    "quoted cells": '"a",',
    "semicolons": "a;",
    "judgements": "1\t2\t1\n",
    "trec judgements": "1 0 2 1\n",
}
"""What is repeated, by name."""

NUMBERED: Mapping[str, str] = {
    "numbered words": "w{} ",
    "numbered identifiers": "HX-{} ",
    "numbered lines": "line {}\n",
    "numbered paragraphs": "paragraph {}\n\n",
    "numbered headings": "# a{}\n",
    "numbered titles": "<h1>a{}</h1>b",
    "numbered cells": "c{},",
    "numbered tab cells": "c{}\t",
    "numbered rows": "q{},u\n",
    "numbered lines by tabs": "q{}\ttext\n",
    "numbered judgements": "q{}\tu\t1\n",
    "numbered units": '{{"_id": "{}", "text": "a"}}\n',
    "numbered keys": '"k{}": 1, ',
    "numbered links": '{{"subject": "s{}", "relation": "r", "object": "o", "source_unit": "u"}}\n',
    "numbered names": '{{"entity": "e", "name": "n{}", "source_unit": "u"}}\n',
    "numbered relations": "> r{} ",
}
"""What is repeated with a running number in it, by name."""


def shaped(name: str, size: int, *, in_json: bool = False) -> bytes:
    """About ``size`` bytes of a shape, at least one round of it; escaped where it is to stand in a JSON text."""
    unit = CHARACTERS.get(name) or NUMBERED[name]
    if in_json:
        unit = unit.replace("\\", "\\\\").replace('"', '\\"')
    rounds = max(1, size // len(unit.encode()))
    if name in CHARACTERS:
        return unit.encode() * rounds
    return "".join(unit.format(number) for number in range(rounds)).encode()
