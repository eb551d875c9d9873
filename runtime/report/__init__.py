"""A trace, looked at: one pass over its records into columns, then a page, or events for the Perfetto viewer.

    columns    a table as typed arrays, packed for the page
    texts      texts, each once, printable and cut
    attempts   one row an attempt: who ran it, how it ended, what became of its group
    counters   in flight, ready, pool, queue, gate and dispatch index over time
    phases     what the trainer was busy with, which steps it closed, and what held it up
    happenings calls, workers, stalls, validations: what the runtime noted
    steps      one row a step, from the columns above
    lanes      attempts side by side, so that none covers another
    collect    the pass
    verdict    what explain says of the trace's end, for the top of the page
    page       the self-contained page; `page/` has its parts
    perfetto   trace events

docs/report.md says how to read the page.
"""
