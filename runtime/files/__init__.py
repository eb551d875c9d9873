"""Files that may be refused, torn or no plain files."""
