from __future__ import annotations

import logging
import re
from contextlib import suppress

import pytest
from pypdf import PdfWriter

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest import read_documents


def test_pages_become_units_with_their_number(make_pdf):
    """Each page's text is a unit with its page from 1; the declared title is the title."""
    units = list(read_documents([make_pdf("Pump manual", "Valve settings", title="The  manual")]))
    assert [(unit.page_content, unit.metadata["page"]) for unit in units] == [("Pump manual", 1), ("Valve settings", 2)]
    assert units[0].metadata == {"title": "The manual", "source": "manual.pdf", "page": 1}
    assert units[0].id.startswith("manual.pdf#")


def test_without_a_declared_title_the_file_name_is_it(make_pdf):
    """The stem of the file stands in for a missing title."""
    assert next(read_documents([make_pdf("x")])).metadata["title"] == "manual"


def test_long_pages_are_split(make_pdf):
    """A page longer than a unit gives several units with the same page number."""
    units = list(read_documents([make_pdf(" ".join(f"word{n}" for n in range(60)))], chunk_chars=100))
    assert len(units) > 3
    assert all(len(unit.page_content) <= 100 and unit.metadata["page"] == 1 for unit in units)


def test_an_encrypted_pdf_is_named(make_pdf):
    """A PDF that needs a password gives an error that says so."""
    path = make_pdf("secret", password="pw")
    with pytest.raises(SourceError, match=r"manual\.pdf: encrypted PDF \(it needs a password\)"):
        list(read_documents([path]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a PDF"),
        (b"<html>", "not a PDF"),
        (b"%PDF-1.4\nrubbish", "damaged PDF"),
        (b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<< /Root 1 0 R >>\n%%EOF", "damaged PDF"),
    ],
)
def test_a_damaged_pdf_is_named(tmp_path, content, reason, capfd):
    """A file that is no PDF, or a broken one, gives one line with the file and reason, and nothing on stderr."""
    path = tmp_path / "bad.pdf"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"bad\.pdf: {reason}") as caught:
        list(read_documents([path]))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("pypdf").handlers


def test_a_truncated_pdf_is_named_or_read(make_pdf):
    """A PDF cut off anywhere ends in units or in the error for bad files, never in another exception."""
    whole = make_pdf("Pump manual", "Valve settings").read_bytes()
    path = make_pdf("x", name="cut.pdf")
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with suppress(SourceError):
            assert list(read_documents([path]))


def test_a_pdf_without_text_is_reported(tmp_path, make_pdf):
    """A scanned or blank PDF in a folder is reported and passed over; alone it is an error."""
    make_pdf("Pump manual")
    writer = PdfWriter()
    writer.add_blank_page(width=100, height=100)
    writer.write(tmp_path / "scan.pdf")
    skipped = []
    units = list(read_documents([tmp_path], on_skip=lambda path, reason: skipped.append((path.name, reason))))
    assert [unit.page_content for unit in units] == ["Pump manual"]
    assert skipped == [("scan.pdf", "no text in this PDF (scanned pages?)")]
    with pytest.raises(SourceError, match=r"scan\.pdf: no text"):
        list(read_documents([tmp_path / "scan.pdf"]))


def test_an_encryption_that_cannot_be_read_is_named(make_pdf):
    """AES, which needs a package that is not installed with this one, is a clear error as well."""
    path = make_pdf("secret", password="pw")
    aes = "/V 5 /R 6 /CF << /StdCF << /CFM /AESV3 /AuthEvent /DocOpen /Length 32 >> >> /StmF /StdCF /StrF /StdCF"
    keys = " ".join(
        f"/{name} <{'00' * size}>" for name, size in {"O": 48, "U": 48, "OE": 32, "UE": 32, "Perms": 16}.items()
    )
    old = re.search(rb"/V 2\s.*?(?=>>\s*endobj)", path.read_bytes(), re.DOTALL)[0]
    path.write_bytes(path.read_bytes().replace(old, f"{aes} /P -4 /Length 256 /Filter /Standard {keys}\n".encode()))
    with pytest.raises(SourceError, match=r"manual\.pdf: encrypted PDF \("):
        list(read_documents([path]))
