"""Markup that has no end in its page, written as the text that it is.

The standard library's HTML parser takes it for text too, but may look for the end of each such tag or comment through
the whole rest of the page, and some of it makes the parser give up.
"""

from __future__ import annotations

import re

_COMMENT, _SECTION, _CONDITION = "comment", "section", "condition"
_DECLARATION = re.compile(
    rf"<!(?:(?P<{_COMMENT}>--)"
    rf"|\[(?:(?P<{_SECTION}>cdata|ignore|include|rcdata|temp)|(?P<{_CONDITION}>else|endif|if))(?![-_.a-z0-9])|\[)",
    re.IGNORECASE | re.ASCII,
)
_ENDS = {_COMMENT: "-->", _SECTION: "]]>", _CONDITION: "]>"}


def write_out_unended(markup: str) -> str:
    """The page with ``&lt;`` in place of each ``<`` that begins what has no end, so that a reader sees it."""
    last = {kind: markup.rfind(end) for kind, end in _ENDS.items()}

    def write(found: re.Match[str]) -> str:
        # A section of another name has no meaning, so nothing could end it.
        has_end = found.lastgroup is not None and found.end() <= last[found.lastgroup]
        return found[0] if has_end else f"&lt;{found[0][1:]}"

    settled = markup.rfind(">") + 1
    return _DECLARATION.sub(write, markup[:settled]) + markup[settled:].replace("<", "&lt;")
