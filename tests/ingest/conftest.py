"""Real files for the readers: small PDFs and whole folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

MakeFiles = Callable[[dict[str, str | bytes]], Path]


@pytest.fixture
def make_files(tmp_path: Path) -> MakeFiles:
    """Write files by relative path into a fresh folder and return the folder."""

    def make(files: dict[str, str | bytes], folder: str = "docs") -> Path:
        root = tmp_path / folder
        root.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return make


@pytest.fixture
def make_pdf(tmp_path: Path):
    """Write a PDF with one line of text on each page and return its path."""

    def make(*pages: str, name: str = "manual.pdf", title: str | None = None, password: str | None = None) -> Path:
        writer = PdfWriter()
        for text in pages:
            _add_page(writer, text)
        if title:
            writer.add_metadata({"/Title": title})
        if password:
            writer.encrypt(password, algorithm="RC4-128")
        path = tmp_path / name
        writer.write(path)
        return path

    return make


def _add_page(writer: PdfWriter, text: str) -> None:
    page = writer.add_blank_page(width=600, height=400)
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font_object = DictionaryObject({NameObject(key): NameObject(value) for key, value in font.items()})
    page[NameObject("/Resources")] = DictionaryObject(
        {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font_object})}
    )
    stream = DecodedStreamObject()
    stream.set_data(f"BT /F1 12 Tf 50 300 Td ({text}) Tj ET".encode("latin-1"))
    page[NameObject("/Contents")] = writer._add_object(stream)
