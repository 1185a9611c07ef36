"""Real programs on a device too small for their garbage."""
