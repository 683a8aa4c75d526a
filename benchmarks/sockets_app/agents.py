from agents import Agent, exposed


class ListenerAgent(Agent):
    """Keeps what it is told."""

    kind = "bench-listener"

    async def authorize(self, request):
        return True

    async def receive(self, message):
        await self.messages.add("user", message["text"])

    @exposed
    async def shout(self, text):
        await self.broadcast(text)
