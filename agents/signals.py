"""What happens in the runtime, as Django signals. docs/observability.md lists them with their arguments.

A signal is sent after the fact, in a thread of its own: a receiver that is slow or raises harms no turn
(``agents/observing/announcing.py``). ``sender`` is the agent's class. It says what has happened to this
process's knowledge, at most once: what must not be missed belongs into the turn (``self.at_commit``).
"""

from django.dispatch import Signal

__all__ = ["lease_lost", "turn_committed", "turn_failed"]

#: A turn's last commit is in the database, and it wrote something.
turn_committed = Signal()
#: A turn left nothing behind: its method raised, it ran past its budget, it was stopped or given back.
turn_failed = Signal()
#: A turn that was running here had its actor taken away, or was voided past its budget and grace.
lease_lost = Signal()
