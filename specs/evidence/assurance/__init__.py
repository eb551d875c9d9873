"""What writes docs/generated/assurance.md: what is proven, for which bounds and assumptions, and what is not."""
