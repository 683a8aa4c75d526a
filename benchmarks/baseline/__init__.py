"""What a Django developer would write by hand for the jobs: DRF, Celery, Redis, Channels, a lock per actor.

Tuned as such a site would be: Gunicorn with four processes of two threads, connections that are kept (the
web's by ``CONN_MAX_AGE``, the worker's by ``CELERY_DB_REUSE_MAX``), a worker with a process a processor, and
timers of the next ten minutes handed to Celery with their exact moment; a sweep finds the others, and what
Redis forgot. Gunicorn and Uvicorn are installed outside the tree (``contestant.py``).
"""

from benchmarks.baseline.celery import app as celery_app

__all__ = ["celery_app"]
