"""The control core of evenstep: explicit state machines without I/O."""
