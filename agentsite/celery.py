"""The Celery application: ``celery -A agentsite worker`` drains, ``celery -A agentsite beat`` sweeps."""

import os
from typing import Any

from celery import Celery
from django.conf import settings
from kombu import Exchange, Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
# Celery would run Django's checks, look at no answer, and keep what they import: 12 MB of views and templates
# in each worker and beat. ``manage.py check --deploy`` is the one that tells.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("agentsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.add_defaults
def _queues() -> dict[str, Any]:
    """The project's own messages are hints, of which Redis need keep no account until they are acknowledged:
    that would be two round trips for each. (RabbitMQ hands all of such a queue to the first who asks.) The
    tasks of an application are in Celery's queue, as ever."""
    on_redis = settings.CELERY_BROKER_URL.startswith(("redis", "sentinel"))
    return {
        "task_queues": [
            Queue("celery", Exchange("celery"), "celery"),
            Queue("agents", Exchange("agents"), "agents", no_ack=on_redis),
        ],
        "task_routes": {"scheduler.tasks.*": {"queue": "agents"}},
    }
