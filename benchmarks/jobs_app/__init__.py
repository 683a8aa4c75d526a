"""The app with the agent that benchmarks/jobs.py drives."""
