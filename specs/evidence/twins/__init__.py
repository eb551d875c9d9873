"""The same rules for SPIN and for TLC, written by hand from the design, and what compares their counts with ours."""
