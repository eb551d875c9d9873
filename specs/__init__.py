"""What must hold of the core, and the tools that look for a counterexample."""
