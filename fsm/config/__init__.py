"""The run configuration that the core reads: parsed, checked as a whole, and made into limits and a sampler.

Start with `parse`. A new option is a field in `blocks`. `values` says what null stands for, `refusals` which options do
not go together, and `setup` makes the limits. `wording` says what is wrong with a document; `strict` reads and writes
documents; `plain` is what they hold in keys without a type of their own.
"""
