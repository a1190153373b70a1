"""How much of the server's memory making an index may take."""

from __future__ import annotations

from typing import Any

from bounded_retrieval.retrievers._pgvector_sql import room_for


def test_an_index_is_made_in_memory_and_the_setting_comes_back(pgvector: Any) -> None:
    """Where the server's own setting is too small it is raised for the transaction, to 1 GB at most, without workers."""
    import psycopg

    def shown(connection: Any, name: str) -> str:
        return str(connection.execute(f"SHOW {name}").fetchone()[0])

    with psycopg.connect(pgvector.url, autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '2MB'; SET max_parallel_maintenance_workers = 2")
        for units, memory, workers in ((100, "2MB", "2"), (50_000, "270312kB", "0"), (10_000_000, "1GB", "0")):
            with connection.transaction():
                connection.execute(room_for(units, 384))
                assert shown(connection, "maintenance_work_mem") == memory
                assert shown(connection, "max_parallel_maintenance_workers") == workers
            assert shown(connection, "maintenance_work_mem") == "2MB"
            assert shown(connection, "max_parallel_maintenance_workers") == "2"
