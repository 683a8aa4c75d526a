"""Settings of servers whose channel layer loses much."""

from tests.agents.sockets.settings import *  # noqa: F403
from tests.agents.sockets.settings import CHANNEL_LAYERS

CHANNEL_LAYERS = {
    "default": {**CHANNEL_LAYERS["default"], "BACKEND": "tests.agents.sockets.lossy.LossyLayer"}
}
