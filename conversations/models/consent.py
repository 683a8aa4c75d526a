"""Consent: who wants no texts from which of our numbers, and how that came about."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class ConsentState(models.TextChoices):
    OPTED_OUT = "opted_out", "opted out: no text may go to them"
    OPTED_IN = "opted_in", "opted in: they asked for texts (again)"


class ConsentSource(models.TextChoices):
    """Who said so."""

    KEYWORD = "keyword", "keyword: they wrote it"
    PROVIDER = "provider", "provider: it told us of their word"
    REFUSAL = "refusal", "refusal: the provider refused a text because of it"
    IMPORT = "import", "import: from a file"
    OPERATOR = "operator", "operator: somebody of ours"


class Consent(models.Model):
    """What one person (a number) said about texts from one of our numbers.

    Found by ``pair``, a keyed hash of both numbers: it works on when the numbers themselves were erased.
    """

    pair = models.CharField(max_length=64, unique=True)
    # Empty once they were erased.
    their_number = models.CharField(max_length=64, default="")
    our_number = models.CharField(max_length=64, default="")
    state = models.CharField(max_length=10, choices=ConsentState.choices)
    source = models.CharField(max_length=10, choices=ConsentSource.choices)
    word = models.CharField(max_length=64, default="")
    changed_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            # Numbers whose hash was made with a key that nobody has any more; and erasure.
            models.Index(fields=["their_number", "our_number"], name="conversations_consent_numbers")
        ]

    def __str__(self) -> str:
        return f"{self.their_number or 'erased'} / {self.our_number or 'erased'}: {self.state}"


class ConsentChange(models.Model):
    """One change of a consent. Kept for as long as the consent is."""

    consent = models.ForeignKey(Consent, on_delete=models.CASCADE, related_name="changes")
    state = models.CharField(max_length=10, choices=ConsentState.choices)
    source = models.CharField(max_length=10, choices=ConsentSource.choices)
    word = models.CharField(max_length=64, default="")
    at = models.DateTimeField()
    # Who of ours did it, where somebody did.
    by = models.CharField(max_length=150, default="")

    def __str__(self) -> str:
        return f"{self.state} by {self.source}"
