"""An app with an agent to chat with, for the site that browser tests start."""
