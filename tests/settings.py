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
    CHANNEL_LAYERS,
    REDIS_URL,
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

# What the layer's keys begin with: runs and their workers share a Redis, and tests drop all that is in it.
# Workers of pytest-xdist have their run's number, and processes that tests start have that of their worker.
LAYER = (
    f"asgi-{os.environ.setdefault('TEST_RUN', str(os.getpid()))}-{os.environ.get('PYTEST_XDIST_WORKER', '')}-"
)
if REDIS_URL:
    CHANNEL_LAYERS = {
        "default": {
            **CHANNEL_LAYERS["default"],
            "CONFIG": {**CHANNEL_LAYERS["default"]["CONFIG"], "prefix": LAYER},  # type: ignore[dict-item]
        }
    }

# Processes that tests start get shorter leases, budgets and the like as JSON.
AGENTS = {**AGENTS, **json.loads(os.environ.get("TEST_AGENTS", "{}"))}
# And other options of the broker.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    **CELERY_BROKER_TRANSPORT_OPTIONS,
    **json.loads(os.environ.get("TEST_BROKER", "{}")),
}
