"""The controller: the one process that feeds events to the core and carries its effects out."""
