"""The Celery application: ``celery -A agentsite worker`` drains, ``celery -A agentsite beat`` sweeps."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
# Celery would run Django's checks, look at no answer, and keep what they import: 12 MB of views and templates
# in each worker and beat. ``manage.py check --deploy`` is the one that tells.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("agentsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
