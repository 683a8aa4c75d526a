"""What only a development site serves, to its own machine: an offline model, and the texts it "sent"."""
