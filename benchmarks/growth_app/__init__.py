"""The app with the agent that benchmarks/growth.py drives."""
