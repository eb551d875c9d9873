"""Configurations of NeMo-RL, TRL and verl as one of evenstep.

`translate` is the entry: a document through the table of its framework. The tables (`tables/*.txt`, in the format that
`rows` describes) are the only place that knows the frameworks' keys: the hints for unknown keys in a configuration
(`hints`) come from them too. `reading` reads files as they are used, with their chain of defaults and interpolation.
"""
