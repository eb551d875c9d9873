"""The state machines, one file each: states, value, context, guards, updates and one rule table.

Start with `table`, which says what a rule is, and with `step_assembly`, the heart. A rule of one machine is changed in
that machine's file alone; machines do not import each other and do not know the state. `catalog` lists all tables,
`drive` fires them through `transitions` in production.
"""
