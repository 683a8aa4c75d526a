"""Random scripts of SQL, for two SQLites to run: every statement legal or not, every result the same.

Sums are of integers, floats are halves, and nothing rests on the order of rows that no ORDER BY gives: almost
everything is answered alike by all versions of SQLite.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

Statement = tuple[str, tuple[object, ...]]

VALUES: tuple[object, ...] = (
    None, 0, 1, -1, 2, 7, 100, 2**31, -(2**63), 2**63 - 1, 0.5, -2.5, 1e10, "", "a", "A", "abc", "ab", "1",
    "1.5", " x ", "zürich", "🙂", "100%", "_", b"", b"a", b"\x00\x01",
)  # fmt: skip
TYPES = ("INTEGER", "TEXT", "REAL", "NUMERIC", "BLOB", "")


class Script:
    """Remembers which tables and columns there should be, so that most statements are legal."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables: dict[str, list[str]] = {}
        self.made = 0

    def statements(self, count: int) -> Iterator[Statement]:
        makers = [
            (2, self.create), (10, self.insert), (4, self.update), (2, self.delete), (14, self.select),
            (3, self.aggregate), (3, self.join), (2, self.compound), (2, self.window), (1, self.index),
            (1, self.view), (1, self.trigger), (2, self.upsert), (1, self.alter), (1, self.drop),
            (2, self.recursive), (1, self.schema), (2, self.returning), (1, self.nonsense),
            (3, self.functions),
        ]  # fmt: skip
        weights = [weight for weight, _ in makers]
        for _ in range(count):
            ((_, make),) = self.random.choices(makers, weights)
            statement = make() if self.tables or make == self.create else self.create()
            if statement is not None:
                yield statement

    # Pieces

    def value(self) -> object:
        return self.random.choice(VALUES)

    def literal(self) -> str:
        return quoted(self.value())

    def table(self) -> str:
        return self.random.choice(list(self.tables))

    def column(self, table: str) -> str:
        return self.random.choice(self.tables[table])

    def expression(self, table: str, depth: int = 0) -> str:
        pick, c = self.random.random(), lambda: self.expression(table, depth + 1)
        if depth > 2 or pick < 0.25:
            return self.column(table)
        if pick < 0.4:
            return self.literal()
        return self.random.choice(
            [
                lambda: f"({c()} {self.random.choice(['=', '<>', '<', '>=', 'IS', 'IS NOT', '||'])} {c()})",
                lambda: f"({c()} {self.random.choice(['AND', 'OR'])} {c()})",
                lambda: f"NOT {c()}",
                lambda: f"({c()} BETWEEN {self.literal()} AND {self.literal()})",
                lambda: f"({c()} IN ({self.literal()}, {self.literal()}, {c()}))",
                lambda: (
                    f"({c()} {self.random.choice(['LIKE', 'GLOB'])} {quoted(self.random.choice(PATTERNS))})"
                ),
                lambda: f"CASE WHEN {c()} THEN {c()} ELSE {c()} END",
                lambda: f"coalesce({c()}, {self.literal()})",
                lambda: f"nullif({c()}, {c()})",
                lambda: f"typeof({c()})",
                lambda: f"length({c()})",
                lambda: f"({c()} COLLATE NOCASE = {c()})",
                lambda: f"(CAST({c()} AS INTEGER) % 7)",
                lambda: f"(CAST({c()} AS INTEGER) & 255)",
                lambda: f"quote(CAST({c()} AS BLOB))",
            ]
        )()

    def where(self, table: str) -> str:
        return f" WHERE {self.expression(table)}" if self.random.random() < 0.7 else ""

    # Statements

    def create(self) -> Statement:
        self.made += 1
        name = f"t{self.made}"
        columns = [f"c{i}" for i in range(self.random.randint(1, 4))]
        parts = []
        for column in columns:
            constraint = self.random.choice(
                ["", "", "", " UNIQUE", " NOT NULL", f" DEFAULT {quoted(self.random.choice(VALUES[1:6]))}",
                 f" CHECK ({column} <> 7)", " COLLATE NOCASE"]
            )  # fmt: skip
            parts.append(f"{column} {self.random.choice(TYPES)}{constraint}")
        if self.tables and self.random.random() < 0.3:
            parts.append(
                f"p REFERENCES {self.table()} (id) ON DELETE {self.random.choice(['CASCADE', 'SET NULL'])}"
            )
            columns.append("p")
        self.tables[name] = ["id", *columns]
        options = self.random.choice(["", "", "", " WITHOUT ROWID"])
        return f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {', '.join(parts)}){options}", ()

    def _rows(self, table: str, count: int) -> tuple[list[str], list[object]]:
        columns = [c for c in self.tables[table] if c != "id"]
        columns = ["id", *self.random.sample(columns, self.random.randint(1, len(columns)))]
        values: list[object] = []
        for _ in range(count):
            values.append(self.random.randint(1, 60))
            values.extend(self.random.randint(1, 60) if c == "p" else self.value() for c in columns[1:])
        return columns, values

    def insert(self) -> Statement:
        table, count = self.table(), self.random.randint(1, 5)
        columns, values = self._rows(table, count)
        verb = self.random.choice(["INSERT", "INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "REPLACE"])
        marks = f"({', '.join('?' * len(columns))})"
        return f"{verb} INTO {table} ({', '.join(columns)}) VALUES {', '.join([marks] * count)}", tuple(
            values
        )

    def upsert(self) -> Statement:
        table = self.table()
        columns, values = self._rows(table, 2)
        marks = f"({', '.join('?' * len(columns))})"
        last = columns[-1]
        return (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {marks}, {marks}"
            f" ON CONFLICT (id) DO UPDATE SET {last} = excluded.{last}"
        ), tuple(values)

    def returning(self) -> Statement:
        table = self.table()
        columns, values = self._rows(table, 1)
        marks = ", ".join("?" * len(columns))
        return f"REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks}) RETURNING *", tuple(values)

    def update(self) -> Statement:
        table = self.table()
        column = self.column(table)
        if column == "id":
            return f"UPDATE OR IGNORE {table} SET id = id + 1{self.where(table)}", ()
        how = self.random.choice(["UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE"])
        return f"{how} {table} SET {column} = {self.expression(table)}{self.where(table)}", ()

    def delete(self) -> Statement:
        table = self.table()
        return f"DELETE FROM {table} WHERE id % {self.random.randint(2, 9)} = 1", ()

    def select(self) -> Statement:
        table = self.table()
        distinct = self.random.choice(["", "", "DISTINCT "])
        columns = ", ".join(f"{self.expression(table)} AS x{i}" for i in range(self.random.randint(1, 3)))
        order = "ORDER BY 1, 2, 3" if distinct else "ORDER BY id"
        if distinct:
            columns = ", ".join(f"quote({self.column(table)}) AS x{i}" for i in range(3))
        limit = f" LIMIT {self.random.randint(0, 9)} OFFSET {self.random.randint(0, 3)}"
        return f"SELECT {distinct}{columns} FROM {table}{self.where(table)} {order}{limit}", ()

    def aggregate(self) -> Statement:
        table = self.table()
        key = self.column(table)
        return (
            f"SELECT quote({key}), count(*), count(DISTINCT {self.column(table)}), sum(id), min(id), max(id),"
            f" avg(id * 2) FROM {table}{self.where(table)} GROUP BY quote({key})"
            f" HAVING count(*) >= {self.random.randint(0, 2)} ORDER BY 1"
        ), ()

    def join(self) -> Statement:
        a, b = self.table(), self.table()
        kind = self.random.choice(["JOIN", "LEFT JOIN", "CROSS JOIN"])
        on = f" ON a.{self.column(a)} = b.{self.column(b)}" if kind != "CROSS JOIN" else ""
        return (
            f"SELECT a.id, b.id, a.{self.column(a)} FROM {a} a {kind} {b} b{on} ORDER BY a.id, b.id LIMIT 50"
        ), ()

    def compound(self) -> Statement:
        a, b = self.table(), self.table()
        verb = self.random.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"])
        return (
            f"SELECT quote({self.column(a)}) FROM {a} {verb}"
            f" SELECT quote({self.column(b)}) FROM {b} ORDER BY 1",
            (),
        )

    def window(self) -> Statement:
        table = self.table()
        return (
            "SELECT id, row_number() OVER w, sum(id) OVER w, lag(id) OVER w, ntile(3) OVER (ORDER BY id)"
            f" FROM {table} WINDOW w AS (PARTITION BY quote({self.column(table)}) ORDER BY id"
            f" ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) ORDER BY id"
        ), ()

    def index(self) -> Statement:
        table = self.table()
        self.made += 1
        what = self.random.choice(
            [self.column(table), f"{self.column(table)}, id", f"instr({self.column(table)}, 'a')"]
        )
        partial = self.random.choice(["", f" WHERE {self.column(table)} IS NOT NULL"])
        unique = self.random.choice(["", "", "UNIQUE "])
        return f"CREATE {unique}INDEX i{self.made} ON {table} ({what}){partial}", ()

    def view(self) -> Statement:
        table = self.table()
        self.made += 1
        return f"CREATE VIEW v{self.made} AS SELECT id, {self.expression(table)} AS x FROM {table}", ()

    def trigger(self) -> Statement:
        a, b = self.table(), self.table()
        self.made += 1
        event = self.random.choice(["INSERT", "DELETE", "UPDATE"])
        row = "old" if event == "DELETE" else "new"
        return (
            f"CREATE TRIGGER g{self.made} AFTER {event} ON {a} WHEN {row}.id % 5 = 0 BEGIN"
            f" DELETE FROM {b} WHERE id = {row}.id + 1;"
            f" UPDATE OR IGNORE {b} SET id = id + 100 WHERE id = 3; END"
        ), ()

    def alter(self) -> Statement:
        table = self.table()
        self.made += 1
        if self.random.random() < 0.5:
            self.tables[table].append(f"n{self.made}")
            default = quoted(self.random.choice(VALUES[1:6]))
            return f"ALTER TABLE {table} ADD COLUMN n{self.made} DEFAULT {default}", ()
        columns = [c for c in self.tables[table] if c != "id"]
        column = self.random.choice(columns)
        self.tables[table][self.tables[table].index(column)] = f"n{self.made}"
        return f"ALTER TABLE {table} RENAME COLUMN {column} TO n{self.made}", ()

    def drop(self) -> Statement | None:
        if len(self.tables) < 4:
            return None
        table = self.table()
        del self.tables[table]
        return f"DROP TABLE {table}", ()

    def recursive(self) -> Statement:
        table = self.table()
        return (
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            f" SELECT i, (SELECT count(*) FROM {table} WHERE id <= i) FROM n ORDER BY i"
        ), (self.random.randint(1, 20),)

    def schema(self) -> Statement:
        return "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name", ()

    def functions(self) -> Statement:
        a, b, c = (self.literal() for _ in range(3))
        return (
            f"SELECT instr({a}, {b}), replace({a}, {b}, {c}), trim({a}, {b}), ltrim({a}, {b}), rtrim({a}, 1)"
            f", upper({a}), substr({a}, 2, 1), hex({a}), unicode({a}), abs(id - 30), min({a}, {b}), trim({a})"
            f" FROM {self.table()} ORDER BY id LIMIT 1"
        ), ()

    def nonsense(self) -> Statement:
        return self.random.choice(
            [
                f"SELECT nothing FROM {self.table()}",
                f"INSERT INTO {self.table()} (id) VALUES (1, 2)",
                "SELECT * FROM nowhere",
                "SELEC 1",
                f"SELECT count(sum(id)) FROM {self.table()}",
                "SELECT abs(-9223372036854775808)",
                f"CREATE TABLE {self.table()} (x)",
            ]
        ), ()


PATTERNS = ("%", "a%", "%b%", "_", "A*", "*", "?", "[a-c]*", "%\\%%")


def quoted(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case -9223372036854775808:
            return "(-9223372036854775807 - 1)"
    return repr(value)
