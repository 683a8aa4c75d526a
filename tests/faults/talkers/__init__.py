"""An app with the agents that are texted while things break."""
