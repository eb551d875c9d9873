"""What docs/generated/assurance.md rests on: proofs, mutants, twins and the configuration matrix."""
