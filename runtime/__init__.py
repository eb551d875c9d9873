"""What carries out the core's effects: command line, generation, training, data."""
