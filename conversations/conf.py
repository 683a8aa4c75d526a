"""Settings of texts, in ``settings.AGENTS`` beside the runtime's, with their defaults and units.

The keys and addresses of the clients (``TELNYX_API_KEY`` ...) are the runtime's: ``agents/conf.py``.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings

#: A webhook's body; one byte more is refused with 413. Not a setting: no provider comes near it.
MAX_WEBHOOK_BYTES = 1024 * 1024

DEFAULTS: dict[str, Any] = {
    # Public keys of the Telnyx account, base64 of 32 bytes each. Several while the account rotates them.
    "TELNYX_PUBLIC_KEYS": [],
    # The Twilio account; its auth tokens: the first one sends, each verifies webhooks while they are rotated.
    "TWILIO_ACCOUNT_SID": "",
    "TWILIO_AUTH_TOKENS": [],
    "TWILIO_BASE_URL": "https://api.twilio.com",
    # Who sends texts: "console", "telnyx", "twilio", "memory", a name of SMS_PROVIDERS, or the dotted path of
    # a TextProvider. Empty: Telnyx when TELNYX_API_KEY is set, else Twilio when it has a token, else the
    # console.
    "SMS_PROVIDER": "",
    # Further providers: name -> dotted path. The name stands in the webhook's address.
    "SMS_PROVIDERS": {},
    # Our numbers: {"+15550009999": {"kind", "provider", "address", "rate"}}, each key optional. Which kind
    # of agent texts to it are for (where the webhook's address names none), who sends from it, how its
    # conversations are named, how many texts a second it may send.
    "SMS_NUMBERS": {},
    # The kind for numbers that say nothing. Empty: such texts wait until somebody says it.
    "SMS_KIND": "",
    # How an actor is named: "sender" (their number), or "pair" ("theirs:ours": one conversation for each of
    # our numbers that somebody writes to). Agents may say it themselves: ``name_for_text``.
    "SMS_ADDRESS": "sender",
    # Where providers reach this site: what their signatures cover, and where they report to. Empty: SITE_URL,
    # unless that is this machine's own.
    "WEBHOOK_BASE_URL": "",
    # How long one call of the provider's API may take, in seconds. Must stay well below SMS_STALE_AFTER.
    "SMS_TIMEOUT": 20.0,
    # A text that has been "sending" for this long, in seconds, has lost its worker: it becomes "unknown".
    "SMS_STALE_AFTER": 60.0,
    # Texts (of different actors) that one process hands to the provider at once.
    "SMS_CONCURRENCY": 8,
    # Texts a second that each of our numbers may send; 0: no limit of ours.
    "SMS_RATE": 0.0,
    # What becomes of a text that may or may not have been sent: "ask" the provider, where it can be asked,
    # and send again only what it says it doesn't have; "keep" it for an operator; "resend" it.
    "SMS_UNKNOWN": "ask",
    # Whether a text that was not delivered for a reason that passes is sent again, as the retry rule says.
    "SMS_RETRY_UNDELIVERED": True,
    # Whether typographic characters that would double a text's price are replaced by their look-alikes.
    "SMS_SMART": True,
    # Texts that one ``send`` may be split into beyond ten segments.
    "SMS_MAX_PARTS": 3,
    # When no text goes out, by the recipient's clock: {"start": "21:00", "end": "08:00", "zone": <where a
    # number tells nothing>}. Replies go at once: texts within SMS_REPLY_WINDOW seconds of theirs.
    "SMS_QUIET_HOURS": None,
    "SMS_REPLY_WINDOW": 900.0,
    # The words about consent (conversations/keywords.py), and what is answered where the provider doesn't do
    # that itself; empty: nothing.
    "SMS_STOP_WORDS": [
        "stop",
        "stopall",
        "stop all",
        "unsubscribe",
        "cancel",
        "end",
        "quit",
        "revoke",
        "optout",
        "opt out",
        "opt-out",
    ],
    "SMS_START_WORDS": ["start", "unstop"],
    "SMS_HELP_WORDS": ["help", "info"],
    "SMS_STOP_REPLY": "You get no more texts from this number. Reply START to get them again.",
    "SMS_START_REPLY": "You get texts from this number again. Reply STOP to get no more.",
    "SMS_HELP_REPLY": "Reply STOP to get no more texts from this number.",
    # Keys of the hash by which consent is found when the numbers are erased; the first one makes new hashes.
    # Empty: Django's SECRET_KEY and SECRET_KEY_FALLBACKS.
    "CONSENT_KEYS": [],
    # A machine that answers a machine: the same longer text this often, or this many texts, from one number
    # within this many seconds; the next one is held. 0: never.
    "SMS_LOOP_SAME": 4,
    "SMS_LOOP_TEXTS": 30,
    "SMS_LOOP_WINDOW": 600.0,
    # Pictures and files that come with texts: how large one may be, what types are kept ("image/*" for all
    # of a kind), seconds that fetching one may take, hosts ("media.example.org:8443") that may be reached
    # without TLS and in private networks.
    "MAX_MEDIA_BYTES": 5 * 1024 * 1024,
    "SMS_MEDIA_TYPES": [
        "image/*",
        "audio/*",
        "video/*",
        "application/pdf",
        "text/vcard",
        "text/x-vcard",
        "text/plain",
        "text/calendar",
    ],
    "SMS_MEDIA_TIMEOUT": 20.0,
    "SMS_MEDIA_HOSTS": [],
    # Bytes of pictures that one rendering for a model holds at most; older ones are named, not shown.
    "MAX_WINDOW_MEDIA_BYTES": 20 * 1024 * 1024,
}


def get(name: str) -> Any:
    """The value of one setting: the project's ``AGENTS[name]`` or the default above."""
    return getattr(settings, "AGENTS", {}).get(name, DEFAULTS[name])
