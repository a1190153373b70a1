"""The index directory: both channels over the same units, replaced as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from operator import length_hint
from pathlib import Path
from typing import Self, TypeVar

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    SourceError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
    StoreVersionError,
)
from bounded_retrieval.policies.tokenize import INDEX_TERMS_NAME
from bounded_retrieval.retrievers._bm25_backends import score_postings
from bounded_retrieval.retrievers._bm25_corpus import CorpusBuilder
from bounded_retrieval.retrievers._bm25_files import UNITS, Header, write_lexical
from bounded_retrieval.retrievers._bm25_index import BM25Settings
from bounded_retrieval.retrievers._chroma_file import content_digest
from bounded_retrieval.retrievers._regular_files import digest_of
from bounded_retrieval.retrievers._store_dense import (
    BATCH,
    COLLECTION,
    DenseWriter,
    IndexReport,
    PreviousGeneration,
    Progress,
)
from bounded_retrieval.retrievers._store_files import (
    DENSE,
    INDEX_FORMAT,
    INDEX_KIND,
    LEXICAL,
    RELATIONSHIPS,
    Manifest,
    check_own,
    file_sizes,
    generation_folder,
    generation_name,
    new_generation,
    publish,
    read_manifest,
    sweep,
    sweep_unfinished,
    write_lock,
    writing,
)
from bounded_retrieval.retrievers._store_verify import verified_folder
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import builtin_embedding, embedding_identity, load_embedding
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.units import RowUnits, read_units, write_units

__all__ = ["Index", "IndexReport", "Manifest", "Progress", "build_index", "open_index", "verify_index"]

Used = TypeVar("Used")


@dataclass(frozen=True)
class Index:
    """An opened index directory. A newer generation is seen only by opening it again.

    Attributes:
        lexical: the BM25 searcher.
        dense: the Chroma searcher.
        units: where the recheck reads current text.
        manifest: what the directory says of itself.
        relationships: the declared relationships, where the index was built with any.
    """

    lexical: BM25Searcher
    dense: ChromaSearcher
    units: RowUnits
    manifest: Manifest
    relationships: RelationshipStore | None = None

    @property
    def built_with(self) -> dict[str, str]:
        """What the index holds of texts, for words and for vectors, by name."""
        return {"tokenizer": self.manifest.tokenizer, "embedding": embedding_identity(self.dense.embedding)}

    def check_calibration(self, calibration: Calibration) -> None:
        """Refuse a calibration that was made with another tokenizer or embedding.

        Raises:
            ConfigurationError: names what differs.
        """
        for name, value in self.built_with.items():
            certified = getattr(calibration, name)
            if certified and certified != value:
                raise ConfigurationError(f"calibration: was made with {name} {certified}, the index has {value}")

    def close(self) -> None:
        """Release the files of both channels."""
        self.lexical.close()
        self.dense.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_index(directory: str | Path, *, embedding: Embeddings | None = None, verify: bool = False) -> Index:
    """Open the generation that counts now. Needs no lock; a writer at work does not disturb it.

    Files that are read whole are compared with their SHA-256; texts and postings, which are read piece by piece, are
    looked at as they are read. A directory that may not be written can be opened: Chroma then works on a private copy
    of the dense store in the temporary folder, until the index is closed.

    Args:
        directory: what `build_index` wrote.
        embedding: the one the index was built with; none for a built-in one.
        verify: compare everything with its digest first, as `verify_index` does.

    Raises:
        StoreMissingError: there is no index.
        StoreVersionError: of another format, or with terms of another tokenizer.
        StoreCorruptError: damaged; names the file.
        StoreError: no private copy can be made where one is needed.
        EmbeddingMismatchError: built with another embedding, or with a foreign one and none is given.
    """
    root = Path(directory)

    def open_it(manifest: Manifest) -> Index:
        chosen = _matching_embedding(root, manifest, embedding)
        if verify:
            verified_folder(root, manifest)
        return _open_generation(root, manifest, chosen)

    return _with_manifest(root, open_it)


def verify_index(directory: str | Path) -> Manifest:
    """Read the generation that counts to its last byte and compare it with its digests; returns its manifest.

    It takes the time of reading all files once, and needs no embedding.

    Raises:
        StoreMissingError, StoreVersionError, StoreCorruptError: as `open_index`.
    """
    root = Path(directory)

    def verify(manifest: Manifest) -> Manifest:
        verified_folder(root, manifest)
        return manifest

    return _with_manifest(root, verify)


def _with_manifest(root: Path, use: Callable[[Manifest], Used]) -> Used:
    """Do something with the generation that counts, and again if another one counts by the time it fails."""
    while True:
        manifest = read_manifest(root)
        if manifest.format != INDEX_FORMAT:
            raise StoreVersionError(
                f"{root}: format {manifest.format}; this version reads {INDEX_FORMAT}; build the index again"
            )
        if manifest.tokenizer != INDEX_TERMS_NAME:
            raise StoreVersionError(
                f"{root}: tokenizer {manifest.tokenizer!r}; this version has {INDEX_TERMS_NAME!r}; "
                "build the index again"
            )
        try:
            return use(manifest)
        except StoreError:
            # A writer may have replaced the generation, and deleted it, since the manifest was read.
            if read_manifest(root) == manifest:
                raise


def build_index(
    documents: Iterable[Document],
    directory: str | Path,
    *,
    embedding: Embeddings | None = None,
    progress: Progress | None = None,
    relationships: RelationshipStore | None = None,
) -> IndexReport:
    """Make a directory hold exactly the given documents, in both channels, and the given relationships.

    A new generation is built beside the one that counts and put in its place in one step; until then, and after any
    error or a kill, the old one answers. Only units whose title or text is new are embedded. The generation
    replaced stays until the next build, for readers that have it open; what a killed build left goes with it.

    Args:
        documents: read once; an id missing from them is removed from the index.
        directory: empty, new, or an index.
        embedding: for a new index by default MiniLM, for an old one the built-in one that it was built with.
        progress: called about every 64 units.
        relationships: what `Index.relationships` will be; none drops those of an old index. Their source units need
            not be among the documents: whether a source exists is asked when a relationship is followed.

    Raises:
        SourceError: a document is not usable, or there is none.
        StoreBusyError: another process is writing the index; it is not waited for.
        StoreError: the directory holds something else, or cannot be written: the disk is full, for example. The old
            index is as it was.
        StoreVersionError, StoreCorruptError: its manifest cannot be read; deleting the directory is the way.
        EmbeddingMismatchError: it was built with another embedding.
    """
    root = Path(directory)
    check_own(root)
    _matching_embedding(root, _read_previous(root), embedding)
    with write_lock(root):
        previous = _read_previous(root)
        chosen = _matching_embedding(root, previous, embedding)
        sweep_unfinished(root, previous.generation if previous else None)
        tell = progress or (lambda _stage, _done, _total: None)
        with new_generation(root) as partial:
            old = PreviousGeneration.read(root, previous)
            if relationships is not None:
                with writing(root):
                    relationships.to_jsonl(partial / RELATIONSHIPS)
            report, manifest = _write_generation(documents, partial, old, chosen, tell)
            tell("publish", report.units, report.units)
            publish(root, partial, manifest)
        sweep(root, keep={manifest.generation, *([previous.generation] if previous else [])})
    if relationships is not None:
        return replace(report, relationships=len(relationships))
    return replace(report, relationships_dropped=previous is not None and RELATIONSHIPS in previous.files)


def _read_previous(root: Path) -> Manifest | None:
    try:
        return read_manifest(root)
    except StoreMissingError:
        return None


def _matching_embedding(root: Path, manifest: Manifest | None, given: Embeddings | None) -> Embeddings:
    if manifest is None:
        return load_embedding() if given is None else given
    if given is None:
        own = builtin_embedding(manifest.embedding)
        if own is None:
            raise EmbeddingMismatchError(f"{root}: give the embedding it was built with ({manifest.embedding!r})")
        return own
    identity = embedding_identity(given)
    if identity != manifest.embedding:
        raise EmbeddingMismatchError(
            f"{root}: built with embedding {manifest.embedding!r} (got {identity!r}); use another directory, "
            "or delete this one to build it anew"
        )
    return given


def _open_generation(root: Path, manifest: Manifest, embedding: Embeddings) -> Index:
    folder = generation_folder(root, manifest)
    with ExitStack() as opened:
        lexical = BM25Searcher.open(folder / LEXICAL)
        opened.callback(lexical.close)
        try:
            dense = ChromaSearcher.open(folder / DENSE, embedding, collection_name=COLLECTION, read_only=True)
        except StoreMissingError as error:
            raise StoreCorruptError(str(error)) from error
        opened.callback(dense.close)
        if (lexical.settings.k1, lexical.settings.b) != (manifest.k1, manifest.b):
            raise StoreCorruptError(f"{folder / LEXICAL}: k1 and b are not those of the manifest")
        for searcher, part in ((lexical, LEXICAL), (dense, DENSE)):
            units = _count(searcher, folder / part)
            if units != manifest.units:
                raise StoreCorruptError(f"{folder / part}: {units} units, expected {manifest.units}")
        relationships = _open_relationships(folder, manifest)
        opened.pop_all()
    return Index(lexical, dense, lexical.units, manifest, relationships)


def _count(searcher: BM25Searcher | ChromaSearcher, folder: Path) -> int:
    try:
        return len(searcher)
    except StoreError as error:
        raise StoreError(f"{folder}: {error}") from error


def _open_relationships(folder: Path, manifest: Manifest) -> RelationshipStore | None:
    """Read at once, so that an open index goes on answering when its generation is deleted."""
    if RELATIONSHIPS not in manifest.files:
        return None
    try:
        return RelationshipStore.from_jsonl(folder / RELATIONSHIPS)
    except SourceError as error:
        raise StoreCorruptError(str(error)) from error


def _write_generation(
    documents: Iterable[Document], partial: Path, old: PreviousGeneration, embedding: Embeddings, progress: Progress
) -> tuple[IndexReport, Manifest]:
    with writing(partial.parent.parent):
        (partial / LEXICAL).mkdir()
    builder = CorpusBuilder()
    with DenseWriter.open(partial / DENSE, old, embedding, progress) as dense:
        units = _through(documents, builder, dense, progress)
        if write_units(partial / LEXICAL / UNITS, units) == 0:
            raise SourceError(f"{partial.parent.parent}: no units to index; to drop an index, delete that directory")
        dimensions = dense.finish()
    report = dense.report()
    progress("lexical", report.units, report.units)
    settings = BM25Settings()
    with writing(partial.parent.parent):
        _write_lexical(partial / LEXICAL, builder, sorted(dense.seen), settings)
    files = file_sizes(partial)
    manifest = Manifest(
        kind=INDEX_KIND,
        format=INDEX_FORMAT,
        package_version=version("bounded-retrieval"),
        tokenizer=INDEX_TERMS_NAME,
        embedding=embedding_identity(embedding),
        dimensions=dimensions,
        k1=settings.k1,
        b=settings.b,
        units=report.units,
        generation=generation_name(partial),
        files=files,
        digests={name: digest_of(partial / name) for name in files},
        dense_rows=content_digest(partial / DENSE),
    )
    return report, manifest


def _through(
    documents: Iterable[Document], builder: CorpusBuilder, dense: DenseWriter, progress: Progress
) -> Iterator[Unit]:
    """The units of the documents, each shown to both channels on its way."""
    total = length_hint(documents) or None
    for count, unit in enumerate(read_units(documents), 1):
        builder.add(unit)
        dense.take(unit)
        if count % BATCH == 0:
            progress("read", count, total)
        yield unit


def _write_lexical(folder: Path, builder: CorpusBuilder, unit_ids: list[str], settings: BM25Settings) -> None:
    corpus = builder.build(unit_ids)
    postings = score_postings(corpus, k1=settings.k1, b=settings.b)
    write_lexical(folder, Header.of(settings, len(corpus)), corpus, postings)
