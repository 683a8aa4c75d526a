"""An app whose agent texts, for processes that tests start."""
