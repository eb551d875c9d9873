"""The arrays and memories behind `specs.checker.explore`, and why they find what a plain search finds.

`specs.checker.plain` calls the model's functions for every state and answer. This folder calls them only where they
would read something new, and looks everything else up, for thousands of states at a time. Start with `search`.

    parts     a state as one integer, its key: the numbers of its parts' values side by side
    rows      keys as rows of an array, and a set of rows that numbers each once
    reading   a state that notes which of its parts a function reads, and what the function writes
    lookup    functions remembered by what they read, looked up for many rows at once
    steps     a model's functions and the judgement of the properties, as functions of keys
    sweep     all transitions of a block of states: look-ups, put together
    graph     how each state was first reached; for `eventually`, every transition
    search    the exploration itself, level by level, with its bounds

Why a look-up is exact:

- **A function is remembered by what it read.** It is given a `TracedState`, a `State` whose fields note that they are
  read. A deterministic function that reads the same does the same, so its result holds in every state that agrees in
  those parts. Nothing is assumed of the function: mutants, tables without a guard, users' samplers and properties are
  explored like the core. Whatever looks at a state as a whole (compares, hashes, copies, prints it) has read all of it.
- **What was not read is not changed.** A result is the bits of the key that stay and the bits that replace the others;
  only parts that the function wrote are among these.
- **An unread value cannot be kept.** A column of the balance sheet that nobody has looked at behaves like its number,
  and counts as read when it does. It has no hash, so storing it in the place of a value fails.
- **A hash only says where to look.** Rows and keys are compared word by word, so equal hashes mix nothing up.
- **The numbers of values run out loudly.** A part that takes more values than a key has room for ends the exploration
  as undetermined (`TooManyValues`), like any bound.
- **Order is kept.** States are numbered breadth first. If a look-up fails, the transitions before it are judged first,
  so the violation reported is the one that a search one by one would meet; it is then replayed without this folder
  (`specs.counterexample`), which also tells a function that looks at more than its arguments.

Tests compare both searches on small runs and planted faults (tests/specs), and feed this folder functions that read
and write in every odd way that fuzzing has found.

The core and the properties know nothing of this: they are called as in production, and nothing of `fsm` is replaced
while they run. What the engine asks of the core is only that a new state is made of an old one with `_replace`.
"""
