"""What is seen from outside of what happens inside: metrics, signals, traces, logs.

The engine and the drain say what they do (``turns.py``); everything else follows from that. Nothing here
waits, and nothing here can fail a turn.
"""
