"""An app with agents, for the processes that tests of the scheduler start."""
