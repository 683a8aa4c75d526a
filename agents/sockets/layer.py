"""The channel layer on Redis, which can say at once which of many groups anybody is in.

Most actors have no socket, and to find that out group by group takes two round trips each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from channels_redis.core import RedisChannelLayer


class RedisLayer(RedisChannelLayer):
    """Channels' own, and a question. With another layer the publisher sends to every group."""

    async def inhabited(self, groups: Iterable[str]) -> list[str]:
        """Those of the groups that may have members: one round trip where it is none of them, or all.

        Raises what Redis's client raises.
        """
        by_server: dict[int, list[str]] = defaultdict(list)
        for group in groups:
            by_server[self.consistent_hash(group)].append(group)
        found = []
        for server, several in by_server.items():
            connection, keys = self.connection(server), [self._group_key(group) for group in several]
            count = await connection.exists(*keys)
            if count == len(keys):
                found += several
            elif count:
                pipeline = connection.pipeline(transaction=False)
                for key in keys:
                    pipeline.exists(key)
                there = await pipeline.execute()
                found += [group for group, is_there in zip(several, there, strict=True) if is_there]
        return found
