from __future__ import annotations

import datetime as dt
import sqlite3
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.normalise import content_id
from bounded_retrieval.contracts.ports import UnitSource
from bounded_retrieval.errors import SourceError, StoreCorruptError, StoreError, StoreMissingError
from bounded_retrieval.retrievers._units_writer import UnitsWriter
from bounded_retrieval.retrievers.units import EditedUnits, MemoryUnits, SqliteUnits, read_units, write_units

PUMP = Document(
    id="pump", page_content="The pump starts.", metadata={"title": "Pump", "year": 2024, "tags": ["a", "b"]}
)
VALVE = Document(id="valve", page_content="Close the valve, now.", metadata={"device": "HX-200"})
FAN = Document(id="Fan", page_content="风扇 'quoted' \"too\"")
DOCUMENTS = [PUMP, VALVE, FAN]


@pytest.fixture(params=["memory", "sqlite", "edited"])
def source(request, tmp_path):
    """The same three units from each kind of source."""
    if request.param == "memory":
        yield MemoryUnits(DOCUMENTS)
        return
    held = DOCUMENTS if request.param == "sqlite" else [PUMP, Document(id="old", page_content="old"), FAN]
    write_units(tmp_path / "units.sqlite", read_units(held))
    units = SqliteUnits(tmp_path / "units.sqlite")
    if request.param == "edited":
        units = units.edited({"valve": next(read_units([VALVE]))}, {"old"})
    yield units
    units.close()


def test_every_source_gives_back_the_documents_it_was_given(source):
    """Id, text and metadata come back as they were, in the order asked for, whatever holds them."""
    assert isinstance(source, UnitSource)
    assert len(source) == 3
    assert list(source.fetch(["valve", "pump", "Fan"]).items()) == [("valve", VALVE), ("pump", PUMP), ("Fan", FAN)]


def test_ids_that_do_not_exist_are_left_out(source):
    """Unknown, removed, empty and unencodable ids are no error and give nothing."""
    assert source.fetch(["pump", "nothing", "old", "", "\ud800", "\x00", "pump"]) == {"pump": PUMP}
    assert source.fetch([]) == {}
    assert source.rows_of(["nothing", "\ud800"]) == {}


def test_rows_are_in_ascending_order_of_ids(source):
    """A unit's row is its place among the ids in code point order, so upper case comes first."""
    assert source.ids() == ["Fan", "pump", "valve"]
    assert source.unit_ids_at([2, 0]) == ["valve", "Fan"]
    assert source.rows_of(["valve", "Fan"]) == {"valve": 2, "Fan": 0}
    assert list(source.metadata()) == [("Fan", {}), ("pump", PUMP.metadata), ("valve", VALVE.metadata)]
    assert [unit.to_document() for unit in source.units()] == [FAN, PUMP, VALVE]


def test_an_edit_makes_other_units_and_leaves_these_alone(source):
    """Removed units are gone, changed and new ones are there, and the source edited is as before."""
    changed = {
        unit.unit_id: unit
        for unit in read_units([Document(id="pump", page_content="new"), Document(id="z", page_content="z")])
    }
    other = source.edited(changed, {"valve", "nothing"})
    assert other.ids() == ["Fan", "pump", "z"]
    assert [document.page_content for document in other.fetch(["pump", "z", "valve"]).values()] == ["new", "z"]
    assert [unit.text for unit in other.units()] == [FAN.page_content, "new", "z"]
    assert [metadata for _, metadata in other.metadata()] == [{}, {}, {}]
    assert other.edited({}, {"z", "Fan", "pump"}).ids() == []
    assert source.ids() == ["Fan", "pump", "valve"]
    assert source.fetch(["pump"]) == {"pump": PUMP}


def test_changing_a_fetched_document_changes_no_unit(source):
    """Fetched metadata is a copy."""
    source.fetch(["pump"])["pump"].metadata["title"] = "changed"
    assert source.fetch(["pump"]) == {"pump": PUMP}


@pytest.mark.parametrize(
    ("document", "unit_id"),
    [
        (Document(id="own", page_content="text", metadata={"key": "from-key"}), "from-key"),
        (Document(id="own", page_content="text", metadata={"key": 7}), "7"),
        (Document(id="own", page_content="text", metadata={"key": None}), "own"),
        (Document(id="own", page_content="text", metadata={"key": ""}), "own"),
        (Document(id="own", page_content="text"), "own"),
        (Document(page_content="text"), content_id("text")),
    ],
)
def test_the_id_is_the_named_field_then_the_documents_own_then_the_content(document, unit_id):
    """The three rules for ids apply in their order."""
    assert MemoryUnits([document], id_key="key").ids() == [unit_id]


def test_a_repeated_id_with_the_same_text_is_one_unit():
    """The first of equal documents is kept."""
    again = Document(id="pump", page_content=PUMP.page_content, metadata={"copy": True})
    assert MemoryUnits([PUMP, again, VALVE, PUMP]).fetch(["pump", "valve"]) == {"pump": PUMP, "valve": VALVE}


def test_one_id_for_two_texts_is_refused_by_name():
    """A duplicate id with another text is an error that names the id and where it stood."""
    with pytest.raises(SourceError, match=r"unit 'pump' \(document 3\): the same id stands for two texts"):
        MemoryUnits([PUMP, VALVE, Document(id="pump", page_content="another")])


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_blank_text_is_refused_by_name(text):
    """An empty or blank text is an error that names the id."""
    with pytest.raises(SourceError, match=r"unit 'bad' \(document 2\): its text is blank"):
        list(read_units([PUMP, Document(id="bad", page_content=text)]))


def test_foreign_metadata_is_stored_as_json_values(tmp_path):
    """Dates, NUL and lone surrogates are cleaned once, and both sources give the same document."""
    document = Document(id="a\x00", page_content="x\ud800", metadata={"day": dt.date(2026, 1, 2), "set": {3}})
    write_units(tmp_path / "u", read_units([document]))
    units = SqliteUnits(tmp_path / "u")
    clean = Document(id="a\ufffd", page_content="x\ufffd", metadata={"day": "2026-01-02", "set": [3]})
    assert units.fetch(["a\ufffd"]) == MemoryUnits([document]).fetch(["a\ufffd"]) == {"a\ufffd": clean}
    units.close()


def test_thousands_of_ids_are_fetched_at_once(tmp_path):
    """A fetch of more ids than SQLite takes variables is cut into several statements."""
    documents = [Document(id=f"{n:05}", page_content=f"text {n}") for n in range(2500)]
    assert write_units(tmp_path / "u", read_units(documents)) == 2500
    units = SqliteUnits(tmp_path / "u")
    asked = units.ids()[::-1]
    assert list(units.fetch(asked)) == asked
    assert units.unit_ids_at(list(range(2499, -1, -1))) == asked
    units.close()


def test_a_path_with_uri_characters_opens(tmp_path):
    """Question marks, hashes and per cent signs in a path are part of the path."""
    path = tmp_path / "a?b#c%20d"
    write_units(path, read_units(DOCUMENTS))
    units = SqliteUnits(path)
    assert len(units) == 3
    units.close()


def test_a_missing_file_is_named(tmp_path):
    """Opening a file that is not there says so."""
    with pytest.raises(StoreMissingError, match=r"nowhere\.sqlite"):
        SqliteUnits(tmp_path / "nowhere.sqlite")


def _truncate(path):
    path.write_bytes(path.read_bytes()[:5000])


def _overwrite(path):
    path.write_bytes(b"this is no database" * 500)


def _drop_a_text(path):
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM texts WHERE place = 0")
    connection.commit()
    connection.close()


def _drop_a_table(path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE texts")
    connection.close()


@pytest.mark.parametrize("damage", [_truncate, _overwrite, _drop_a_table])
def test_a_damaged_file_is_named(tmp_path, damage):
    """A truncated, foreign or incomplete file is reported as damaged, not as an SQLite error."""
    path = tmp_path / "units.sqlite"
    write_units(path, read_units(Document(id=str(n), page_content="text " * 50) for n in range(100)))
    damage(path)
    with pytest.raises(StoreCorruptError, match=r"units\.sqlite"):
        SqliteUnits(path)


def test_a_missing_text_is_found_when_it_is_read(tmp_path):
    """Opening does not count the texts; a unit without one is damage for whoever reads it, alone or among all."""
    path = tmp_path / "units.sqlite"
    write_units(path, read_units(Document(id=str(n), page_content=f"text {n}") for n in range(9)))
    _drop_a_text(path)
    units = SqliteUnits(path)
    for read in (lambda: units.fetch(["0"]), lambda: list(units.units()), lambda: list(units.metadata())):
        with pytest.raises(StoreCorruptError, match=r"units\.sqlite"):
            read()
    assert list(units.fetch(["1", "none"])) == ["1"]
    units.close()


def test_damaged_metadata_is_found_when_it_is_read(tmp_path):
    """Metadata that is no JSON is reported with the file's name."""
    path = tmp_path / "units.sqlite"
    write_units(path, read_units(DOCUMENTS))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE texts SET metadata = '{'")
    connection.commit()
    connection.close()
    units = SqliteUnits(path)
    with pytest.raises(StoreCorruptError, match=r"units\.sqlite: metadata"):
        units.fetch(["pump"])
    units.close()


def test_units_of_another_file_are_kept_in_the_order_of_their_ids(tmp_path):
    """A file made over another one holds both, less those replaced, and tells which place each row was given."""
    write_units(tmp_path / "old", read_units(Document(id=name, page_content=f"old {name}") for name in "dbéa"))
    added = list(read_units(Document(id=name, page_content=f"new {name}") for name in "cb"))
    with UnitsWriter(tmp_path / "new") as writer:
        writer.add(added)
        places = writer.finish(tmp_path / "old", [1])
    with closing(SqliteUnits(tmp_path / "new")) as units:
        texts = [unit.text for unit in units.units()]
        assert units.at_places([0, 1, 2]) == [("", "new c"), ("", "new b"), ("", "old a")]
    assert texts == ["old a", "new b", "new c", "old d", "old é"]
    assert places.tolist() == [2, 1, 0, 4, 5]


def test_an_existing_file_is_not_written_over(tmp_path):
    """The writer makes a new file and refuses another one's place."""
    (tmp_path / "u").write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        write_units(tmp_path / "u", read_units(DOCUMENTS))
    assert (tmp_path / "u").read_text() == "mine"


def test_an_error_of_the_documents_passes_through_the_writer(tmp_path):
    """What goes wrong in the stream of documents is not turned into a storage error."""
    with pytest.raises(SourceError, match="blank"):
        write_units(tmp_path / "u", read_units([PUMP, Document(id="b", page_content="")]))


def test_threads_read_at_the_same_time(tmp_path):
    """Eight threads reading at once all get their units, from no more connections than threads."""
    write_units(tmp_path / "u", read_units(Document(id=str(n), page_content=f"text {n}") for n in range(200)))
    units = SqliteUnits(tmp_path / "u")
    barrier = threading.Barrier(8)

    def read(start):
        barrier.wait()
        return all(units.fetch([str(n)])[str(n)].page_content == f"text {n}" for n in range(start, 200, 8))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert 1 <= len(units._idle) <= 8
    units.close()


def test_a_closed_source_says_so(tmp_path):
    """Closing twice is fine; reading after it is an error that names the file."""
    write_units(tmp_path / "u", read_units(DOCUMENTS))
    units = SqliteUnits(tmp_path / "u")
    units.close()
    units.close()
    with pytest.raises(StoreError, match="closed"):
        units.fetch(["pump"])


def test_a_deleted_file_goes_on_answering_and_then_says_what_to_do(tmp_path):
    """Open connections outlive the file; another connection cannot be had, and the error says to open again."""
    write_units(tmp_path / "u", read_units(DOCUMENTS))
    units = SqliteUnits(tmp_path / "u")
    (tmp_path / "u").unlink()
    assert units.fetch(["pump"]) == {"pump": PUMP}
    with units._connection(), pytest.raises(StoreError, match="open it again"):
        units.fetch(["pump"])
    units.close()


TEXTS = st.text(alphabet=string.ascii_letters + " äß中\n", min_size=1).filter(str.strip)
METADATA = st.dictionaries(
    st.sampled_from(["kind", "n", "nested"]), st.one_of(st.integers(-5, 5), TEXTS, st.none(), st.lists(st.booleans()))
)


@given(st.dictionaries(TEXTS, st.tuples(TEXTS, METADATA), min_size=1))
def test_both_sources_agree_on_any_units(tmp_path_factory, held):
    """What memory gives, the file gives: ids, order, documents and metadata."""
    documents = [
        Document(id=unit_id, page_content=text, metadata=metadata) for unit_id, (text, metadata) in held.items()
    ]
    path = tmp_path_factory.mktemp("units") / "u"
    write_units(path, read_units(documents))
    memory, file = MemoryUnits(documents), SqliteUnits(path)
    assert memory.ids() == file.ids()
    assert memory.fetch(memory.ids()) == file.fetch(memory.ids())
    assert list(memory.metadata()) == list(file.metadata())
    file.close()


def test_an_edited_source_is_told_apart(tmp_path):
    """The kinds of sources show themselves and their size."""
    write_units(tmp_path / "u", read_units(DOCUMENTS))
    units = SqliteUnits(tmp_path / "u")
    edited = units.edited({}, {"pump"})
    assert isinstance(edited, EditedUnits)
    assert repr(MemoryUnits(DOCUMENTS)) == "MemoryUnits(3 units)"
    assert repr(units).endswith("u', 3 units)")
    assert "0 changed, 2 units" in repr(edited)
    edited.close()
