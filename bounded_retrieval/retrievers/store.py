"""The index directory: both channels over the same units, replaced as a whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Self, TypeVar

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.calibration import Calibration
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
from bounded_retrieval.retrievers._accelerated import AcceleratedSearcher
from bounded_retrieval.retrievers._bm25_index import BM25Settings
from bounded_retrieval.retrievers._chroma_file import content_digest
from bounded_retrieval.retrievers._regular_files import digest_of
from bounded_retrieval.retrievers._store_build import GenerationBuild, IndexReport, Progress
from bounded_retrieval.retrievers._store_dense import accelerated
from bounded_retrieval.retrievers._store_files import (
    VECTOR_CACHE,
    check_own,
    file_sizes,
    generation_folder,
    generation_name,
    new_generation,
    publish,
    sweep,
    sweep_unfinished,
    write_lock,
    writing,
)
from bounded_retrieval.retrievers._store_manifest import (
    CHROMA_FOLDER,
    DENSE,
    INDEX_FORMAT,
    INDEX_KIND,
    LEXICAL,
    RELATIONSHIPS,
    DenseKind,
    Manifest,
    read_manifest,
)
from bounded_retrieval.retrievers._store_previous import PreviousGeneration
from bounded_retrieval.retrievers._store_verify import verified_folder
from bounded_retrieval.retrievers._vectors import VECTORS
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.embeddings import builtin_embedding, check_embeds, embedding_identity, load_embedding
from bounded_retrieval.retrievers.exact import EXACT_LIMIT, ExactSearcher
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.units import as_path

__all__ = ["EXACT_LIMIT", "Index", "IndexReport", "Manifest", "Progress", "build_index", "open_index", "verify_index"]

Used = TypeVar("Used")


@dataclass(frozen=True)
class Index:
    """An opened index directory. A newer generation is seen only by opening it again.

    Attributes:
        lexical: the BM25 searcher.
        dense: the dense searcher: exact, or with a Chroma store for more units than `EXACT_LIMIT`.
        manifest: what the directory says of itself.
        relationships: the declared relationships, where the index was built with any.
    """

    lexical: BM25Searcher
    dense: ExactSearcher | AcceleratedSearcher
    manifest: Manifest
    relationships: RelationshipStore | None = None

    @property
    def units(self) -> BM25Searcher:
        """Where the recheck reads current text: the lexical searcher, so that its edits count there, too."""
        return self.lexical

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
    looked at as they are read, and a Chroma store when it is first searched. A directory that may not be written can be
    opened; Chroma then works on a private copy of its store in the temporary folder, until the index is closed.

    Args:
        directory: what `build_index` wrote.
        embedding: the one the index was built with; none for a built-in one.
        verify: compare everything with its digest first, as `verify_index` does.

    Raises:
        StoreError, ConfigurationError: ``directory`` is no path, ``embedding`` no embedding.
        StoreMissingError: there is no index.
        StoreVersionError: of another format, or with terms of another tokenizer.
        StoreCorruptError: damaged; names the file.
        EmbeddingMismatchError: built with another embedding, or with a foreign one and none is given.
    """
    root = as_path("directory", directory)

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
        StoreError, StoreMissingError, StoreVersionError, StoreCorruptError: as `open_index`.
    """
    root = as_path("directory", directory)

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


def build_index(  # noqa: PLR0913  # all but two are keyword-only
    documents: Iterable[Document],
    directory: str | Path,
    *,
    embedding: Embeddings | None = None,
    progress: Progress | None = None,
    relationships: RelationshipStore | None = None,
    keep: bool = False,
    whole_sources: Collection[str] = (),
    dense: Literal["auto", "exact", "chroma"] = "auto",
) -> IndexReport:
    """Make a directory hold the given documents, in both channels, and the given relationships.

    A new generation is built beside the one that counts and put in its place in one step; until then, and after any
    error or a kill, the old one answers. Only units whose title or text is new are tokenised and embedded. The vectors
    that a build made before it ended early are kept in the directory and taken by the next one. The generation
    replaced stays until the next build, for readers that have it open; what a killed build left goes with it.

    Args:
        documents: read once, as a stream; an id missing from them is removed from the index, unless ``keep``.
        directory: empty, new, or an index.
        embedding: for a new index by default MiniLM, for an old one the built-in one that it was built with.
        progress: called about every 64 units.
        relationships: what `Index.relationships` will be; none drops those of an old index, unless ``keep``. Whether a
            source unit exists is asked when a relationship is followed.
        keep: add to the index: units, and relationships where none are given, stay as far as they are not given again.
        whole_sources: with ``keep``, sources (see `find_sources`) that ``documents`` holds every part of; others go.
        dense: how vectors will be searched: ``exact`` compares every one, ``chroma`` goes through a graph where there
            are more than `EXACT_LIMIT` units to look at, ``auto`` is exact up to that many.

    Raises:
        SourceError: a document is not usable, or there is none.
        ConfigurationError: ``dense`` is something else; embedding or relationships are none.
        StoreBusyError: another process is writing the index; it is not waited for.
        StoreError: the directory holds something else, or cannot be written (a full disk); the old index stays.
        StoreVersionError, StoreCorruptError: its manifest cannot be read; deleting the directory is the way. With
            ``keep`` also where anything in it is damaged.
        EmbeddingMismatchError: it was built with another embedding.
    """
    root = as_path("directory", directory)
    if not isinstance(relationships, RelationshipStore | None):
        raise ConfigurationError(f"relationships: expected a RelationshipStore (got {type(relationships).__name__})")
    if dense not in ("auto", "exact", "chroma"):
        raise ConfigurationError(f"dense: expected 'auto', 'exact' or 'chroma' (got {dense!r})")
    check_own(root)
    _matching_embedding(root, _read_previous(root), embedding)
    with write_lock(root):
        previous = _read_previous(root)
        chosen = _matching_embedding(root, previous, embedding)
        task = _Task(root, previous, chosen, keep, whole_sources, dense, relationships)
        sweep_unfinished(root, previous.generation if previous else None)
        tell = progress or (lambda _stage, _done, _total: None)
        with new_generation(root) as partial:
            report, manifest = _write_generation(documents, partial, task, tell)
            tell("publish", report.units, report.units)
            publish(root, partial, manifest)
        sweep(root, keep={manifest.generation, *([previous.generation] if previous else [])})
        with suppress(OSError):
            (root / VECTOR_CACHE).unlink(missing_ok=True)
    return report


@dataclass(frozen=True)
class _Task:
    """What a build is asked for."""

    root: Path
    previous: Manifest | None
    embedding: Embeddings
    keep: bool
    whole_sources: Collection[str]
    dense: str
    relationships: RelationshipStore | None

    @property
    def kept_relationships(self) -> Path | None:
        """The file of the old relationships, where they stay."""
        if self.keep and self.relationships is None and self.previous and RELATIONSHIPS in self.previous.files:
            return generation_folder(self.root, self.previous) / RELATIONSHIPS
        return None


def _read_previous(root: Path) -> Manifest | None:
    try:
        return read_manifest(root)
    except StoreMissingError:
        return None


def _matching_embedding(root: Path, manifest: Manifest | None, given: Embeddings | None) -> Embeddings:
    if given is not None:
        check_embeds(given)
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
        if (lexical.settings.k1, lexical.settings.b) != (manifest.k1, manifest.b):
            raise StoreCorruptError(f"{folder / LEXICAL}: k1 and b are not those of the manifest")
        if len(lexical) != manifest.units:
            raise StoreCorruptError(f"{folder / LEXICAL}: {len(lexical)} units, expected {manifest.units}")
        path, mask = folder / DENSE / VECTORS, lexical.masks()
        exact = ExactSearcher.open(path, lexical.units, embedding, manifest.dimensions, mask=mask)
        relationships = _open_relationships(folder, manifest)
        opened.pop_all()
    dense = accelerated(exact, root, manifest, EXACT_LIMIT) if manifest.dense == "chroma" else exact
    return Index(lexical, dense, manifest, relationships)


def _open_relationships(folder: Path, manifest: Manifest) -> RelationshipStore | None:
    """Read at once, so that an open index goes on answering when its generation is deleted."""
    if RELATIONSHIPS not in manifest.files:
        return None
    try:
        return RelationshipStore.from_jsonl(folder / RELATIONSHIPS)
    except SourceError as error:
        raise StoreCorruptError(str(error)) from error


def _write_generation(
    documents: Iterable[Document], partial: Path, task: _Task, progress: Progress
) -> tuple[IndexReport, Manifest]:
    work = partial / "work"
    with ExitStack() as opened:
        with writing(task.root):
            work.mkdir()
        build = GenerationBuild(
            root=task.root,
            partial=partial,
            old=_taken_over(opened, task, work),
            embedding=task.embedding,
            keep=task.keep,
            whole_sources=task.whole_sources,
            progress=progress,
        )
        opened.callback(build.close)
        kept = _write_relationships(partial, task)
        build.read(documents)
        build.embed()
        build.order_words()
        build.order_vectors()
        build.find_neighbours()
        build.draw_graph(_kind(task.dense, build.units))
        build.clean_up()
    progress("publish", 0, build.units)
    before = task.previous is not None and RELATIONSHIPS in task.previous.files
    count = len(task.relationships) if task.relationships is not None else kept
    dropped = before and task.relationships is None and not task.keep
    report = replace(build.report(), relationships=count, relationships_dropped=dropped)
    return report, _manifest(partial, task, build, report)


def _kind(asked: str, units: int) -> DenseKind:
    return "chroma" if asked == "chroma" or (asked == "auto" and units > EXACT_LIMIT) else "exact"


def _taken_over(opened: ExitStack, task: _Task, work: Path) -> PreviousGeneration | None:
    """The old generation. A damaged one counts as none, unless its units are to stay."""
    if task.previous is None:
        return None
    try:
        return PreviousGeneration.read(opened, task.root, task.previous, work)
    except StoreError:
        if task.keep:
            raise
        return None


def _write_relationships(partial: Path, task: _Task) -> int:
    """Write the relationships that are given, or copy those that stay; how many of these there are."""
    path, old = partial / RELATIONSHIPS, task.kept_relationships
    with writing(task.root):
        if task.relationships is not None:
            task.relationships.to_jsonl(path)
        if old is not None:
            shutil.copyfile(old, path)
    return 0 if old is None else len(RelationshipStore.from_jsonl(path))


def _manifest(partial: Path, task: _Task, build: GenerationBuild, report: IndexReport) -> Manifest:
    files, settings = file_sizes(partial), BM25Settings()
    return Manifest(
        kind=INDEX_KIND,
        format=INDEX_FORMAT,
        package_version=version("bounded-retrieval"),
        tokenizer=INDEX_TERMS_NAME,
        embedding=embedding_identity(task.embedding),
        dimensions=build.dimensions,
        k1=settings.k1,
        b=settings.b,
        units=report.units,
        generation=generation_name(partial),
        files=files,
        digests={name: digest_of(partial / name) for name in files},
        dense=report.dense,
        dense_rows=content_digest(partial / DENSE / CHROMA_FOLDER) if report.dense == "chroma" else None,
    )
