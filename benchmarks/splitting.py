"""Tables split by actor: PostgreSQL's hash partitions, in place of the tables that a migration made.

What docs/scaling.md says that the schema permits, and ``python -m benchmarks.growth disk --split 8`` tries.
The tables must be empty: a site with rows copies them between the two steps.
"""

from __future__ import annotations

import re

#: What has many rows an actor. Others have one, or the ids of providers, which are unique over all actors.
TABLES = [
    "agents_blob",
    "agents_event",
    "agents_page",
    "agents_storedvalue",
    "agents_turnrecord",
    "conversations_message",
    "scheduler_attempt",
    "scheduler_step",
    "scheduler_task",
]


def split(parts: int) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(
                "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = %s", [table]
            )
            indexes = [definition for (definition,) in cursor.fetchall()]
            cursor.execute(
                "SELECT attidentity <> '' FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'id'",
                [table],
            )
            has_id = bool(cursor.fetchone())
            cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_whole")
            cursor.execute(
                f"CREATE TABLE {table} (LIKE {table}_whole INCLUDING DEFAULTS INCLUDING STORAGE)"
                " PARTITION BY HASH (actor_id)"
            )
            for number in range(parts):
                cursor.execute(
                    f"CREATE TABLE {table}_{number} PARTITION OF {table}"
                    f" FOR VALUES WITH (MODULUS {parts}, REMAINDER {number})"
                )
            cursor.execute(f"DROP TABLE {table}_whole")
            if has_id:
                # An identity column of a partitioned table needs PostgreSQL 17: a sequence does on all.
                cursor.execute(f"CREATE SEQUENCE {table}_id_seq OWNED BY {table}.id")
                cursor.execute(
                    f"ALTER TABLE {table} ALTER id SET DEFAULT nextval('{table}_id_seq'),"
                    " ADD PRIMARY KEY (id, actor_id)"
                )
            for definition in indexes:
                if not re.search(r"USING btree \(id\)$", definition):
                    cursor.execute(definition)
            cursor.execute(f"ALTER TABLE {table} ADD FOREIGN KEY (actor_id) REFERENCES agents_actor (id)")
