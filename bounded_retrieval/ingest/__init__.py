"""Read files and folders into units: LangChain documents with stable ids, a title and a source."""

from __future__ import annotations

from bounded_retrieval.ingest.discovery import find_relationships, find_sources
from bounded_retrieval.ingest.readers import read_documents
from bounded_retrieval.ingest.splitting import DEFAULT_CHUNK_CHARS, MAX_CHUNK_CHARS, MIN_CHUNK_CHARS

__all__ = [
    "DEFAULT_CHUNK_CHARS",
    "MAX_CHUNK_CHARS",
    "MIN_CHUNK_CHARS",
    "find_relationships",
    "find_sources",
    "read_documents",
]
