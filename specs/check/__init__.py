"""What `evenstep check` explores of a configuration, and how it reports the result.

Start with `verdicts`: it explores the `cases`, which `scaling` makes small. `user_properties` loads a user's own.
`concrete` finds the prompts of a counterexample, `story` tells it, `saved` and `formats` write it. None of this prints.
"""
