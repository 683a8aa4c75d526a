"""Settings of the test suite: the site's own, made independent of the machine that runs it.

What a developer put into ``.env`` (keys of real providers among it) must not reach a test. The database and
the broker still come from ``DATABASE_URL`` and ``REDIS_URL``, the folder for files from ``VAR_DIR``.
"""

import json
import os
import threading
import time

os.environ["ENV_FILE"] = ""  # also for the processes that tests start
os.environ["DEBUG"] = "false"
os.environ["SECURE_SSL_REDIRECT"] = "false"
os.environ.setdefault("LOG_CONTENT", "true")  # tests read what is logged
for key in ("TELNYX_API_KEY", "TELNYX_PUBLIC_KEY", "TELNYX_PUBLIC_KEYS", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(key, None)
os.environ.setdefault("SECRET_KEY", "only-for-tests")

from agentsite.settings import *  # noqa: E402, F403
from agentsite.settings import (  # noqa: E402
    AGENTS,
    CELERY_BROKER_TRANSPORT_OPTIONS,
    STORAGES,
    VAR_DIR,
)

# Static files as they lie in the apps: nobody ran collectstatic before a test.
STORAGES = {
    **STORAGES,
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_AUTOREFRESH = True
WHITENOISE_USE_FINDERS = True

MEDIA_ROOT = VAR_DIR / "test-media"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick; the users are invented

if "FAKETIME" in os.environ:
    # Under libfaketime the system call behind it fails.
    time.sleep = lambda seconds: threading.Event().wait(float(seconds)) and None  # type: ignore[assignment]

# Processes that tests start get shorter leases, budgets and the like as JSON.
AGENTS = {**AGENTS, **json.loads(os.environ.get("TEST_AGENTS", "{}"))}
# And other options of the broker.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    **CELERY_BROKER_TRANSPORT_OPTIONS,
    **json.loads(os.environ.get("TEST_BROKER", "{}")),
}
