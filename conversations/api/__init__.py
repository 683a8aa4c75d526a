"""The REST API of conversations: their messages."""
