"""What `evenstep check` explores of a configuration, and how it tells of it."""
