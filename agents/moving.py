"""Export and import: everything that is kept of an actor as one file of JSON lines, for another database.

The first line says what it is, the last how many lines there were; between them a line a row,
``{"table": "conversations.Message", "row": {...}}``, and the files of the actor in pieces. It is read at one
moment of the database's.

An imported actor is paused, its texts are not sent and nothing runs, until an operator lets it go on: it may
still be at work where it came from.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import secrets
import uuid
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import IntegrityError, connection, models, transaction
from django.utils import timezone

from agents import masking, names
from agents.blobs import FOLDER
from agents.exceptions import AgentsError, ExportError, ImportRefusedError
from agents.holdings import HOLDINGS, Holding, in_order
from agents.models import Actor, Blob
from agents.operations import note
from agents.store import get_store

FORMAT, VERSION = "django-agents actor", 1
#: Rows written at a time, bytes of a file in one line.
BATCH, PIECE = 500, 256 * 1024

_ACTOR = ("version", "started", "seq", "cursor", "state", "created_at")


# Out


def export(
    kind: str, name: str, *, by: str, reason: str = "", redacted: bool = False, sensitive: bool = False
) -> Iterator[str]:
    """The lines of an actor's file, each with its end.

    ``redacted``: shapes alone. Words become as many x, names other names, numbers 0; the SQL database and the
    contents of files are left out. ``sensitive``: with what the class calls sensitive. Raises ExportError
    where there is no such actor.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        actor = Actor.objects.filter(kind=kind, name=name).first()
        if actor is None:
            raise ExportError(f"there is no {kind}/{name}")
        veil = Veil() if redacted else None
        count = 0
        for record in _records(actor, veil, sensitive):
            count += 1
            yield _line(record)
        yield _line({"end": count})
        detail = {"redacted": redacted, "sensitive": sensitive}
        note("export", by=by, reason=reason, actor=actor, detail=detail)


def _records(actor: Actor, veil: Veil | None, sensitive: bool) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "version": VERSION,
        "kind": actor.kind,
        "name": veil.name(actor.name) if veil else actor.name,
        "redacted": veil is not None,
        "masked": not sensitive and bool(masking.sensitive_keys(actor.kind)),
        "exported_at": _plain(timezone.now()),
    }
    row = {column: getattr(actor, column) for column in _ACTOR}
    if not sensitive:
        row["state"] = masking.masked(actor.kind, row["state"])
    if veil:
        row["state"] = veil.tree(row["state"])
    yield {"table": "agents.Actor", "row": {column: _plain(value) for column, value in row.items()}}
    for holding in in_order():
        if not holding.exported or (veil and _is_binary(holding)):
            continue
        columns = _columns(holding)
        order = "pk" if holding.model._meta.pk.name != "pk" else columns[0].attname
        rows = holding.of(actor).order_by(order).values(*(c.attname for c in columns))
        for values in rows.iterator(chunk_size=BATCH):
            if not sensitive:
                for column in holding.state:
                    values[column] = masking.masked(actor.kind, values[column])
            if veil:
                values = veil.row(holding, columns, values)
            yield {"table": holding.label, "row": {key: _plain(value) for key, value in values.items()}}
            if holding.model is Blob and not veil:
                yield from _pieces(values)


def _pieces(blob: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        file = default_storage.open(blob["path"], "rb")
    except FileNotFoundError as error:
        raise ExportError("a file of the actor was replaced meanwhile: export it again") from error
    with file:
        while piece := file.read(PIECE):
            yield {"blob": blob["key"], "bytes": base64.b64encode(piece).decode()}


def _columns(holding: Holding) -> list[models.Field[Any, Any]]:
    """What of a table goes over: not whose row it is, nor what the database makes by itself."""
    fields = holding.model._meta.concrete_fields
    return [f for f in fields if f.attname != "actor_id" and not getattr(f, "generated", False)]


def _is_binary(holding: Holding) -> bool:
    return any(isinstance(f, models.BinaryField) for f in _columns(holding))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, uuid.UUID | Decimal):
        return str(value)
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return value


class Veil:
    """Hides what people said and are called, and keeps the shape of it. Another one each time."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)

    def name(self, text: str) -> str:
        """Another name: the same for the same."""
        return f"x{hashlib.blake2b(text.encode(), key=self._salt, digest_size=8).hexdigest()}" if text else ""

    def text(self, text: str) -> str:
        return "".join(c if c.isspace() else "x" for c in text)

    def tree(self, tree: Any) -> Any:
        if isinstance(tree, str):
            return self.text(tree)
        if isinstance(tree, dict):
            return {key if key.isidentifier() else self.name(key): self.tree(v) for key, v in tree.items()}
        if isinstance(tree, list):
            return [self.tree(value) for value in tree]
        return tree if tree is None or isinstance(tree, bool) else 0

    def row(
        self, holding: Holding, columns: list[models.Field[Any, Any]], row: dict[str, Any]
    ) -> dict[str, Any]:
        hidden = {}
        for column in columns:
            value = row[column.attname]
            if column.attname in holding.names and isinstance(value, str):
                value = self.name(value)
            elif column.attname not in holding.plain and column.name != "pk":
                if isinstance(column, models.JSONField):
                    value = self.tree(value)
                elif isinstance(value, str):
                    value = self.text(value)
            hidden[column.attname] = value
        return hidden


# In


def load(lines: Iterable[str], *, by: str, name: str = "", reason: str = "") -> Actor:
    """Makes the actor of a file, under its name or another one; paused. All of it or nothing.

    Raises ImportRefusedError for a file that is none, is cut, or has rows of tables that are not here; where
    the actor is here already, or something that must be once (a text's id).
    """
    paths: list[str] = []
    try:
        with transaction.atomic():
            actor = _Import(by, name, reason, paths).run(_parsed(lines))
    except BaseException as error:
        for path in paths:
            default_storage.delete(path)
        if isinstance(error, IntegrityError):
            raise ImportRefusedError(f"something of it is here already: {error}") from error
        misfit = isinstance(error, KeyError | TypeError | ValueError | ValidationError)
        if misfit and not isinstance(error, AgentsError):
            raise ImportRefusedError(f"the file does not fit this version: {error!r}") from error
        raise
    return actor


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    count = 0
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ImportRefusedError(f"line {number} is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise ImportRefusedError(f"line {number} is no object")
        if "end" in record:
            if record["end"] != count:
                raise ImportRefusedError(f"{record['end']} lines were written, {count} are here")
            return
        count = number
        yield record
    raise ImportRefusedError("the file is cut: its last line is missing")


class _Import:
    def __init__(self, by: str, name: str, reason: str, paths: list[str]) -> None:
        self._by, self._name, self._reason, self._paths = by, name, reason, paths
        self._numbers: dict[tuple[str, Any], Any] = {}
        self._batch: list[tuple[Any, models.Model]] = []
        self._holding: Holding | None = None
        self._files: dict[str, tuple[dict[str, Any], list[bytes]]] = {}

    def run(self, records: Iterator[dict[str, Any]]) -> Actor:
        head = next(records, {})
        if head.get("format") != FORMAT or head.get("version") != VERSION:
            raise ImportRefusedError("this is no export of an actor, or one of another version")
        kind = names.check_kind(head["kind"])
        name = names.check_name(self._name or head["name"])
        if Actor.objects.filter(kind=kind, name=name).exists():
            raise ImportRefusedError(f"{kind}/{name} is here already: erase it first, or give another name")
        first = next(records, {})
        if first.get("table") != "agents.Actor":
            raise ImportRefusedError("the actor's own row is missing")
        row = {column: first["row"][column] for column in _ACTOR}
        if head.get("masked"):
            row["state"] = masking.unmasked(row["state"])
        self._actor = Actor(kind=kind, name=name, paused_at=timezone.now(), **_typed(Actor, row))
        self._actor.save(force_insert=True)
        for record in records:
            if "blob" in record:
                self._files[record["blob"]][1].append(base64.b64decode(record["bytes"]))
            else:
                self._take(record["table"], record["row"])
        self._flush()
        for blob, pieces in self._files.values():
            self._file(blob, b"".join(pieces), bool(head.get("redacted")))
        get_store().realarm(self._actor.pk)
        note("import", by=self._by, reason=self._reason, actor=self._actor)
        return self._actor

    def _take(self, label: str, row: dict[str, Any]) -> None:
        holding = HOLDINGS.get(label)
        if holding is None or not holding.exported:
            raise ImportRefusedError(f"there is no table {label} here that takes rows of an actor")
        if holding is not self._holding or len(self._batch) >= BATCH:
            self._flush()
            self._holding = holding
        if holding.model is Blob:
            self._files[row["key"]] = (row, [])
            return
        values = _typed(holding.model, row)
        arrived = holding.arrives(values)
        if arrived is None:
            return
        for column, of in holding.refers.items():
            if arrived[column] is not None:
                arrived[column] = self._numbers.get((of, arrived[column]), -arrived[column])
        pk = holding.model._meta.pk
        assert pk is not None
        old = arrived.pop(pk.attname, None) if isinstance(pk, models.AutoField) else None
        self._batch.append(
            (
                old,
                holding.model(actor_id=self._actor.pk, **arrived)
                if _owned(holding)
                else holding.model(**arrived),
            )
        )

    def _flush(self) -> None:
        if self._holding is not None and self._batch:
            made = self._holding.model._default_manager.bulk_create([row for _, row in self._batch])
            for (old, _), new in zip(self._batch, made, strict=True):
                if old is not None:
                    self._numbers[self._holding.label, old] = new.pk
        self._batch = []

    def _file(self, row: dict[str, Any], data: bytes, redacted: bool) -> None:
        if not redacted and hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise ImportRefusedError(f"the file {row['key']!r} is not what was exported")
        path = default_storage.save(f"{FOLDER}/{self._actor.pk}/{uuid.uuid4().hex}", ContentFile(data))
        self._paths.append(path)
        values = _typed(Blob, {**row, "path": path})
        values.pop("id", None)
        Blob.objects.create(actor=self._actor, **values)


def _owned(holding: Holding) -> bool:
    return any(f.attname == "actor_id" for f in holding.model._meta.concrete_fields)


def _typed(model: type[models.Model], row: dict[str, Any]) -> dict[str, Any]:
    """The values of a row as its columns have them. Raises KeyError for a column that there isn't."""
    fields = {f.attname: f for f in model._meta.concrete_fields}
    typed = {}
    for name, value in row.items():
        column = fields[name]
        if isinstance(column, models.BinaryField):
            value = base64.b64decode(value)
        elif not isinstance(column, models.JSONField) and value is not None:
            value = column.to_python(value)
        typed[name] = value
    return typed
