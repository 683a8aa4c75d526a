"""A provider to test against: Telnyx's and Twilio's HTTP APIs on this machine, for the official clients.

``manage.py sms_sandbox`` serves it; in tests it is a context manager::

    with Sandbox(webhook=f"{site}/webhooks/{{provider}}/support/") as sandbox:
        ...                                       # TELNYX_BASE_URL = sandbox.telnyx_url
        sandbox.text("telnyx", "+15550001111", "+15550009999", "hello")

What it accepts it "delivers", and reports with signed events as the provider would: late, doubled and out of
order when asked. Some numbers stand for what can go wrong: ``conversations/sandbox/magic.py``.
"""

from conversations.sandbox.messages import Options
from conversations.sandbox.server import Sandbox

__all__ = ["Options", "Sandbox"]
