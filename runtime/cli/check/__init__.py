"""`evenstep check`."""
