"""Work on other processes, which may hang, exit or die.

`pool` starts them; `hanging` reports the user's code that hangs or ends one. Nothing here knows what the work is.
"""
