"""Settings of the servers that the tests of sockets start."""

from tests.settings import *  # noqa: F403
from tests.settings import AGENTS

ALLOWED_HOSTS = ["127.0.0.1", "localhost", ".example.org"]
AGENTS = {"SOCKET_ORIGINS": ["https://app.example.com:8443"], **AGENTS}
