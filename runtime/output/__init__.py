"""The directory of a run, from its start to its summary.

`directory` decides who may start or resume a run there and marks a start that has not begun; start with its docstring.
`cluster_file` notes where a live run is reached, `restart_file` what no trace says of a restart, `shared_output` checks
that all nodes see the same directory, `card` describes the model that a run leaves, and `summary` is what the user gets
at the end. Keys of the summary and names of files may be added, and none changed: scripts and older runs have them.
"""
