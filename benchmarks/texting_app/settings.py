"""The site's settings, with what the benchmark adds to ``AGENTS``."""

import json
import os

from agentsite.settings import *  # noqa: F403
from agentsite.settings import AGENTS

AGENTS = {**AGENTS, **json.loads(os.environ.get("BENCHMARK_AGENTS", "{}"))}
