"""Text that an agent is writing: rows of their own until it ends as a message."""

from __future__ import annotations

from django.db import models


class Stream(models.Model):
    """One stream in progress. It goes in the commit that makes it a message, or with the turn that failed.

    Written by the turn that holds the actor, between its commits. A retry of the task takes the row over and
    begins anew under the same ``uid``, so that readers replace what they had.
    """

    actor = models.ForeignKey(
        "agents.Actor", on_delete=models.CASCADE, related_name="streams", db_index=False
    )
    uid = models.CharField(max_length=32)
    turn_id = models.UUIDField()
    # The task that writes it; null in a call, whose streams go with it when it fails.
    task_pk = models.BigIntegerField(null=True)
    number = models.IntegerField(help_text="1 for the first stream that its turn opened.")
    take = models.IntegerField(help_text="1 for the first attempt to write it.")
    chunks = models.IntegerField(help_text="How many there are; their positions begin at 0.")
    role = models.CharField(max_length=9)
    written_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "uid"], name="conversations_stream_uid")]
        indexes = [
            # Streams that nobody writes any more.
            models.Index(fields=["written_at"], name="conversations_stream_written"),
        ]

    def __str__(self) -> str:
        return self.uid


class StreamChunk(models.Model):
    """A piece of a stream's text, as it was saved and shown."""

    actor = models.ForeignKey("agents.Actor", on_delete=models.CASCADE, related_name="+", db_index=False)
    uid = models.CharField(max_length=32)
    position = models.IntegerField(help_text="0 for the first.")
    text = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["actor", "uid", "position"], name="conversations_streamchunk_position"
            )
        ]

    def __str__(self) -> str:
        return f"{self.uid} #{self.position}"
