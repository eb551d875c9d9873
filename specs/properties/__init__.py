"""What must hold of every run, as named public objects. Start with `kinds`; `catalog` says which are checked where.

    kinds           what a property is, and the decorators that make one of a function
    sampler_facts   what the rules say of a sampler, from what it promises
    states          of every state
    edges_of_groups of every transition: a group's way into a step (admission, dispatch, selection, eviction, the pool)
    edges_of_steps  of every transition: losses, steps, ends and resumes; and what must happen in the end
    catalog         all of them, in the order in which they are looked for

A property says a rule once more in its own words: it may call the core's functions for what it does not judge.
"""
