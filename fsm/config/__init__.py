"""The run configuration that the core reads: parsed, checked as a whole, and made into limits and a sampler."""
