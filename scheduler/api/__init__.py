"""The REST API of tasks: for operators who may look at them, and change them."""
