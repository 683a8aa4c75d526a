"""The site's settings, and as many texts of one person as the benchmark likes."""

from agentsite.settings import *  # noqa: F403
from agentsite.settings import AGENTS

AGENTS = {**AGENTS, "SMS_LOOP_TEXTS": 0, "SMS_LOOP_SAME": 0}
