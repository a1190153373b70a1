from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest import read_documents


def sources(*paths: Path | str, **options) -> list[str]:
    """The sources of the units read, in order."""
    return [unit.metadata["source"] for unit in read_documents(paths, **options)]


def test_a_folder_is_read_in_order_with_relative_sources(make_files):
    """All readable files below a folder come sorted, whatever the case of the suffix, with paths relative to it."""
    folder = make_files({"b.txt": "b", "a/z.MD": "z", "a/c.html": "c", "c.markdown": "m", "d.htm": "d"})
    assert sources(folder) == ["a/c.html", "a/z.MD", "b.txt", "c.markdown", "d.htm"]


def test_a_text_file_becomes_units_by_paragraph(make_files):
    """A text file's title is its stem; paragraphs are packed into units up to the size."""
    paragraphs = [f"Paragraph {number} " + "word " * 10 for number in range(6)]
    folder = make_files({"notes.txt": "\ufeff" + "\r\n\r\n".join(paragraphs)})
    units = list(read_documents([folder], chunk_chars=150))
    assert [unit.page_content.count("Paragraph") for unit in units] == [2, 2, 2]
    assert units[0].metadata == {"title": "notes", "source": "notes.txt"}
    assert not any("\r" in unit.page_content or "\ufeff" in unit.page_content for unit in units)


def test_nothing_in_a_unit_names_the_machine(make_files):
    """Neither ids nor metadata hold the absolute path."""
    folder = make_files({"a/b.md": "# T\ntext", "c.jsonl": '{"_id": "x", "text": "t"}'})
    assert not any(str(folder.parent) in repr(unit) for unit in read_documents([folder]))


def test_reading_twice_gives_the_same_units(make_files):
    """Ids, texts and metadata are the same on every run and wherever the folder stands."""
    files = {"a.md": "# A\nx\n## B\ny", "b/c.txt": "text", "d.html": "<h1>H</h1><p>p</p>"}
    first, second = make_files(files, "one/docs"), make_files(files, "two/docs")
    units = list(read_documents([first]))
    assert units == list(read_documents([first])) == list(read_documents([second]))
    assert len({unit.id for unit in units}) == len(units)


def test_hidden_and_unknown_files_are_left_out(make_files):
    """Hidden files and folders are passed over silently, unknown suffixes are reported with the reason."""
    folder = make_files({"a.md": "a", ".hidden.md": "h", ".git/b.md": "b", "code.py": "x", "LICENSE": "l"})
    skipped = []
    assert sources(folder, on_skip=lambda path, reason: skipped.append((path.name, reason))) == ["a.md"]
    assert skipped == [("LICENSE", "no suffix"), ("code.py", "unknown suffix '.py'")]


def test_links_are_not_followed(make_files):
    """Links to files and folders, outside, inside or in a circle, are reported and not read."""
    outside = make_files({"secret.md": "secret"}, "outside")
    folder = make_files({"a.md": "a", "sub/b.md": "b"})
    (folder / "out.md").symlink_to(outside / "secret.md")
    (folder / "outdir").symlink_to(outside, target_is_directory=True)
    (folder / "sub" / "circle").symlink_to(folder, target_is_directory=True)
    (folder / "twin.md").symlink_to(folder / "a.md")
    skipped = []
    assert sources(folder, on_skip=lambda path, _: skipped.append(path.name)) == ["a.md", "sub/b.md"]
    assert skipped == ["out.md", "outdir", "twin.md", "circle"]


def test_a_given_link_is_read(make_files, tmp_path):
    """A path that the user names is read even if it is a link."""
    (tmp_path / "link").symlink_to(make_files({"a.md": "a"}), target_is_directory=True)
    assert sources(tmp_path / "link") == ["a.md"]


def test_special_files_are_not_opened(make_files):
    """A named pipe in a folder is reported instead of waited for."""
    folder = make_files({"a.md": "a"})
    os.mkfifo(folder / "pipe.md")
    skipped = []
    assert sources(folder, on_skip=lambda path, reason: skipped.append((path.name, reason))) == ["a.md"]
    assert skipped == [("pipe.md", "not a regular file")]
    with pytest.raises(SourceError, match=r"pipe\.md: not a regular file"):
        read_documents([folder / "pipe.md"])


def test_only_the_corpus_of_a_collection_is_read(make_files):
    """In a BEIR folder the requests and their answers are not taken for units."""
    line = '{"_id": "%s", "text": "t"}'
    folder = make_files({name: line % name for name in ("corpus.jsonl", "queries.jsonl", "questions.jsonl")})
    assert [unit.id for unit in read_documents([folder])] == ["corpus.jsonl"]
    assert [unit.id for unit in read_documents([folder / "queries.jsonl"])] == ["queries.jsonl"]


def test_several_paths_have_the_folder_name_in_their_sources(make_files):
    """The same relative path in two folders gives two sources, and a file its name."""
    one, two = make_files({"a.md": "x"}, "one"), make_files({"a.md": "y"}, "two")
    alone = make_files({"b.md": "z"}, "three") / "b.md"
    assert sources(one, two, alone) == ["one/a.md", "two/a.md", "b.md"]


def test_two_files_with_one_source_are_refused(make_files):
    """Folders of the same name, or files of the same name, never mix silently."""
    one, two = make_files({"a.md": "x"}, "one/docs"), make_files({"a.md": "y"}, "two/docs")
    for paths in ([one, two], [one / "a.md", two / "a.md"]):
        with pytest.raises(SourceError, match=r"two/docs/a\.md: same source '(docs/)?a\.md' as .*one/docs/a\.md"):
            read_documents(paths)


def test_a_file_given_twice_is_read_once(make_files):
    """Repeated paths count once, and a file inside a folder that was given is reported as already read."""
    folder = make_files({"a.md": "x", "b.md": "y"})
    skipped = []
    assert sources(folder, folder / "..") == ["docs/a.md", "docs/b.md"]
    assert sources(folder, str(folder)) == ["a.md", "b.md"]
    assert sources(folder, folder / "a.md", on_skip=lambda *skip: skipped.append(skip)) == ["a.md", "b.md"]
    assert skipped == [(folder / "a.md", "already read as a.md")]


def test_an_index_inside_the_folder_is_passed_over(make_files):
    """Indexing into a folder inside the one that is read does not read the index the next time."""
    folder = make_files({"a.md": "x", "index/manifest.json": "{}", "index/generations/000001/lexical/notes.txt": "y"})
    skipped = []
    assert sources(folder, on_skip=lambda *skip: skipped.append(skip)) == ["a.md"]
    assert skipped == []


def test_a_file_beside_one_folder_leaves_its_sources_alone(make_files):
    """Adding a single file to what is indexed does not rename the units of the folder."""
    folder, alone = make_files({"a.md": "x"}, "one"), make_files({"b.md": "z"}, "two") / "b.md"
    assert sources(folder, alone) == ["a.md", "b.md"]


def test_one_path_may_be_given_without_a_list(make_files):
    """A single path, as text or Path, is not taken for a sequence of letters."""
    folder = make_files({"a.md": "x"})
    assert [unit.id for unit in read_documents(str(folder))] == [unit.id for unit in read_documents(folder)]


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ({}, "missing", "missing: does not exist"),
        ({}, "n" * 300 + ".md", "cannot be read (File name too long)"),
        ({"code.py": "x"}, "code.py", "code.py: unknown suffix '.py' (readable: .jsonl .md"),
        ({"README": "x"}, "README", "README: no suffix"),
        ({"x.md/a.py": ""}, "x.md", "x.md: nothing readable in this folder"),
        ({}, ".", "docs: nothing readable in this folder"),
        ({".a.md": "x", "b.py": ""}, ".", "docs: nothing readable in this folder"),
    ],
)
def test_paths_that_cannot_be_read_are_refused_at_once(make_files, files, name, message):
    """What is wrong with a path is raised by the call, before anything is read."""
    folder = make_files(files)
    with pytest.raises(SourceError) as caught:
        read_documents([folder / name])
    assert message in str(caught.value)


def test_no_path_at_all_is_refused():
    """An empty list of paths is an error, not an empty answer."""
    with pytest.raises(SourceError, match="at least one"):
        read_documents([])


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.pdf"])
def test_a_file_without_text(make_files, make_pdf, name):
    """An empty document is reported in a folder that has others, and an error where it is all there is."""
    content = make_pdf("").read_bytes() if name.endswith("pdf") else b" \n"
    folder = make_files({name: content})
    for path in (folder, folder / name):
        with pytest.raises(SourceError, match="no text to read"):
            list(read_documents([path]))
    (folder / "b.txt").write_text("text")
    skipped = []
    assert sources(folder, on_skip=lambda path, _: skipped.append(path.name)) == ["b.txt"]
    assert skipped == [name]


@pytest.mark.parametrize("content", ["", "\ufeff", "\n \n"])
def test_an_empty_jsonl_file_does_not_keep_its_folder_from_being_read(make_files, content):
    """In a folder it is reported and passed over; alone it is an error that names it, as is a folder of nothing else."""
    folder = make_files({"a.jsonl": content})
    with pytest.raises(SourceError, match=r"a\.jsonl: empty \(no unit in it\)"):
        list(read_documents([folder / "a.jsonl"]))
    with pytest.raises(SourceError, match="docs: no text to read"):
        list(read_documents([folder]))
    (folder / "b.txt").write_text("text")
    skipped = []
    assert sources(folder, on_skip=lambda path, reason: skipped.append((path.name, reason))) == ["b.txt"]
    assert skipped == [("a.jsonl", "no text in this file")]


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html"])
def test_undecodable_bytes_are_named(make_files, name):
    """A file that is not UTF-8 is named with the offset of the first wrong byte; UTF-16 is recognised."""
    path = make_files({name: b"\xef\xbb\xbfcaf\xe9"}) / name
    with pytest.raises(SourceError, match=rf"{name}: byte 6 \(0xe9\): not UTF-8"):
        list(read_documents([path]))
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(SourceError, match=rf"{name}: byte 0 \(0xff\): the file looks like UTF-16"):
        list(read_documents([path]))


def test_unstorable_characters_are_replaced(make_files):
    """NUL in a file and bytes of a file name that are no UTF-8 become U+FFFD."""
    folder = make_files({"a.txt": "x\0y"})
    os.rename(os.fsencode(folder / "a.txt"), os.fsencode(folder) + b"/n\xff.txt")  # noqa: PTH104 - Path takes no bytes
    (unit,) = read_documents([folder])
    assert unit.page_content == "x\ufffdy"
    assert unit.metadata == {"title": "n\ufffd", "source": "n\ufffd.txt"}


def test_a_file_that_goes_away_is_named(make_files):
    """A file that is gone when its turn comes gives an error with its name."""
    folder = make_files({"a.md": "a", "b.md": "b"})
    stream = read_documents([folder])
    (folder / "b.md").unlink()
    assert next(stream).page_content == "a"
    with pytest.raises(SourceError, match=r"b\.md: cannot be read \(No such file"):
        next(stream)


def test_importing_loads_no_heavy_package():
    """The loaders' packages are imported on first use only."""
    code = (
        "import sys, bounded_retrieval.ingest; "
        "print(*sorted({'langchain_community', 'bs4', 'pypdf', 'langchain_text_splitters'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
