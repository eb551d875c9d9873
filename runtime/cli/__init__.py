"""The command line. `app` lists the commands; each is one function in the file of its name.

`explain` also has `status`, `try_out` is `try`, `scenario` a group of commands; `check/` and `kept/` (`export`,
`samples`) are folders.
`common` has what several commands share: the trace argument, errors as exit codes, files written whole. `entry` is the
console script; it stays light, since every process that `evenstep check` spawns imports it. A command's docstring is
its `--help`: what it does, exit codes, an example.
"""
