"""The operator's window on tasks: what is due, what is stuck, why, and the verbs that help.

The actions and the buttons call ``scheduler.verbs``, as the commands do; a verb that one task refuses is
done for the others, and each is in the log of who did what.
"""

from __future__ import annotations

from scheduler.admin.attempts import AttemptAdmin
from scheduler.admin.replays import ReplayJobAdmin
from scheduler.admin.tasks import TaskAdmin

__all__ = ["AttemptAdmin", "ReplayJobAdmin", "TaskAdmin"]
