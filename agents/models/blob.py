"""Files of an actor, over Django's storage."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Blob(models.Model):
    """One file of an actor. The row is part of a turn's commit; the bytes lie in the default storage."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="blobs", db_index=False)
    key = models.CharField(max_length=255)
    # Where the bytes are: a path of its own for each put, so that a lost turn overwrites nothing.
    path = models.CharField(max_length=255)
    content_type = models.CharField(max_length=255, default="application/octet-stream")
    size = models.BigIntegerField(help_text="bytes")
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="agents_blob_key")]

    def __str__(self) -> str:
        return self.key
