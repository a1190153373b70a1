"""Bounded retrieval: a finite, inspectable controller above an application's retrievers.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bounded_retrieval.contracts.budget import Budget, Usage
    from bounded_retrieval.contracts.calibration import Calibration
    from bounded_retrieval.contracts.candidate import Candidate
    from bounded_retrieval.contracts.chain import ChainLimits, ChainResult, Hop, NextQuery, SubAnswer
    from bounded_retrieval.contracts.eligibility import EligibilityView
    from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket
    from bounded_retrieval.contracts.request import RetrievalRequest
    from bounded_retrieval.contracts.settings import BoundedContext
    from bounded_retrieval.contracts.stop import StopReason
    from bounded_retrieval.contracts.trace import DecisionTrace
    from bounded_retrieval.errors import BoundedRetrievalError, ChainStoppedError, RetrievalFailedError
    from bounded_retrieval.graph.as_node import as_node
    from bounded_retrieval.graph.bounded import create_bounded_retrieval
    from bounded_retrieval.graph.chain import create_recursive_retrieval
    from bounded_retrieval.integrations.diagnostics import JsonlDiagnostics
    from bounded_retrieval.integrations.langchain import BoundedRetriever, create_retrieval_tool
    from bounded_retrieval.policies.chaining import ChainRules
    from bounded_retrieval.policies.coverage import TermCoverage
    from bounded_retrieval.policies.fusion import ReciprocalRankFusion, ScoreFusion
    from bounded_retrieval.policies.metadata_view import MetadataView
    from bounded_retrieval.policies.planners import TemplatePlanner
    from bounded_retrieval.policies.reading import ExtractiveReader
    from bounded_retrieval.policies.weighted import IdfCoverage, Scorecard
    from bounded_retrieval.retrievers.bm25 import BM25Searcher
    from bounded_retrieval.retrievers.chroma import ChromaSearcher
    from bounded_retrieval.retrievers.chroma_server import ChromaServerSearcher
    from bounded_retrieval.retrievers.exact import ExactSearcher
    from bounded_retrieval.retrievers.milvus import MilvusStore
    from bounded_retrieval.retrievers.pgvector import PgVectorSearcher
    from bounded_retrieval.retrievers.relationships import RelationshipStore
    from bounded_retrieval.retrievers.store import build_index, open_index

__version__ = "0.1.0"

_HOMES = {
    "BM25Searcher": "retrievers.bm25",
    "BoundedContext": "contracts.settings",
    "BoundedRetrievalError": "errors",
    "BoundedRetriever": "integrations.langchain",
    "Budget": "contracts.budget",
    "Calibration": "contracts.calibration",
    "Candidate": "contracts.candidate",
    "ChainLimits": "contracts.chain",
    "ChainResult": "contracts.chain",
    "ChainRules": "policies.chaining",
    "ChainStoppedError": "errors",
    "ChromaSearcher": "retrievers.chroma",
    "ChromaServerSearcher": "retrievers.chroma_server",
    "DecisionTrace": "contracts.trace",
    "EligibilityView": "contracts.eligibility",
    "EvidenceItem": "contracts.packet",
    "EvidencePacket": "contracts.packet",
    "ExactSearcher": "retrievers.exact",
    "ExtractiveReader": "policies.reading",
    "Hop": "contracts.chain",
    "IdfCoverage": "policies.weighted",
    "JsonlDiagnostics": "integrations.diagnostics",
    "MetadataView": "policies.metadata_view",
    "MilvusStore": "retrievers.milvus",
    "NextQuery": "contracts.chain",
    "PgVectorSearcher": "retrievers.pgvector",
    "ReciprocalRankFusion": "policies.fusion",
    "RelationshipStore": "retrievers.relationships",
    "RetrievalFailedError": "errors",
    "RetrievalRequest": "contracts.request",
    "ScoreFusion": "policies.fusion",
    "Scorecard": "policies.weighted",
    "StopReason": "contracts.stop",
    "SubAnswer": "contracts.chain",
    "TemplatePlanner": "policies.planners",
    "TermCoverage": "policies.coverage",
    "Usage": "contracts.budget",
    "as_node": "graph.as_node",
    "build_index": "retrievers.store",
    "create_bounded_retrieval": "graph.bounded",
    "create_recursive_retrieval": "graph.chain",
    "create_retrieval_tool": "integrations.langchain",
    "open_index": "retrievers.store",
}

__all__ = [
    "BM25Searcher",
    "BoundedContext",
    "BoundedRetrievalError",
    "BoundedRetriever",
    "Budget",
    "Calibration",
    "Candidate",
    "ChainLimits",
    "ChainResult",
    "ChainRules",
    "ChainStoppedError",
    "ChromaSearcher",
    "ChromaServerSearcher",
    "DecisionTrace",
    "EligibilityView",
    "EvidenceItem",
    "EvidencePacket",
    "ExactSearcher",
    "ExtractiveReader",
    "Hop",
    "IdfCoverage",
    "JsonlDiagnostics",
    "MetadataView",
    "MilvusStore",
    "NextQuery",
    "PgVectorSearcher",
    "ReciprocalRankFusion",
    "RelationshipStore",
    "RetrievalFailedError",
    "RetrievalRequest",
    "ScoreFusion",
    "Scorecard",
    "StopReason",
    "SubAnswer",
    "TemplatePlanner",
    "TermCoverage",
    "Usage",
    "as_node",
    "build_index",
    "create_bounded_retrieval",
    "create_recursive_retrieval",
    "create_retrieval_tool",
    "open_index",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
