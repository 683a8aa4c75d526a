"""The app with the agent that benchmarks/texting.py texts to."""
