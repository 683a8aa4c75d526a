"""An app with agents that talk over sockets, for the servers that these tests start."""
