"""`evenstep check`: `command` has the options and prints, `input` reads, `output` writes files, `ending` the errors.

The exploration itself is in specs/check.
"""
