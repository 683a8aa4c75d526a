"""Who fires due tasks: one of these, chosen by AGENTS["DISPATCHER"].

``local`` runs drains in the process that serves the site (or in ``manage.py run_scheduler``); ``celery``
publishes wake-ups to workers. Either listens to the alarms that commits leave behind (``agents.store``) and
has a sweep that finds due actors by itself, so every wake-up may be lost.
"""
