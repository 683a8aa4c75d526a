"""The log as each framework and provider wants it: one module each, all on the same repair.

``to_*`` takes messages of the log in the order of their seq (whole, or a window) and gives plain JSON values;
it changes nothing and gives the same for the same messages every time. ``from_*`` is the way back: what the
provider or framework returned, as the mappings that ``append_many`` takes. A further format is one more
module: copy the nearest, begin with ``exchanges(messages)``, and add its methods to ``MessageLog``.
"""

from conversations.adapters.ai_sdk import from_ai_sdk, to_ai_sdk
from conversations.adapters.anthropic import from_anthropic, system_prompt, to_anthropic
from conversations.adapters.langchain import (
    from_langchain,
    to_langchain,
    to_langchain_messages,
    to_langchain_objects,
)
from conversations.adapters.openai import from_openai, to_openai
from conversations.adapters.responses import from_openai_responses, to_openai_responses

__all__ = [
    "from_ai_sdk",
    "from_anthropic",
    "from_langchain",
    "from_openai",
    "from_openai_responses",
    "system_prompt",
    "to_ai_sdk",
    "to_anthropic",
    "to_langchain",
    "to_langchain_messages",
    "to_langchain_objects",
    "to_openai",
    "to_openai_responses",
]
