"""The traces of a run as a page for a browser, or as events for the Perfetto viewer: one pass into columns.

    columns     tables as typed arrays, packed for the page; texts, each kept once
    attempts    one row per attempt: worker, times, result, fate of its group; lanes, so that none covers another
    counters    in flight, ready, pool, queue, gate and dispatch index over time
    phases      what the trainer did, which steps it closed, what it waited for
    happenings  marks and calls from the runtime's notes
    steps       one row per step, from the columns above
    traces      those of a resumed run, in order
    collect     the pass
    samples     what the policy said, from samples.jsonl beside the trace
    page        the page, with explain's verdict on top; its HTML, style and scripts are in `page/`
    perfetto    trace events

Start with `collect`. A new chart needs a column in a table and a few lines in `page/`. docs/report.md says how to read
the page.
"""
