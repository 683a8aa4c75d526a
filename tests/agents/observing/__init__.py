"""What is seen of the runtime from outside."""
