"""docs/assurance.md: what is proven, for which bounds, under which assumptions, and what is not, with the figures."""
