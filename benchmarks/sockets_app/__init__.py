"""An app with one agent, for benchmarks/sockets.py."""
