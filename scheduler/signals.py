"""What happens to tasks, as Django signals. docs/observability.md lists them with their arguments.

Sent after the fact, in a thread of its own; see ``agents/signals.py``.
"""

from django.dispatch import Signal

__all__ = ["task_parked"]

#: A task has used up its retries, or gave up: it waits for somebody.
task_parked = Signal()
