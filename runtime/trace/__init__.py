"""The trace: all that a run's core was told, what it did, and what the runtime knows beside; written and read.

    control path ── Trace.observe, Trace.note ──► a queue ── thread ──► trace.jsonl, rotated parts
                                        └───────► a ring in memory ──► a file, when the watchdog fires or on SIGUSR1

    notes     what the runtime knows and the core doesn't, one NamedTuple a kind
    kinds     the name, the code on disk and the fields of every event, move, effect and note
    records   one line each: transition, note, snapshot; encoded and decoded
    header    the first line of each part; the core of a recorded run
    vitals    who is in flight since when and where, calls that are open, workers: a fold over records
    parts     the files of a trace, rotated and compressed
    writer    `Trace`
    reader    lines and records, streamed
    moment    `state_at`: the core, and the vitals, at any moment
    replay    the recorded events to today's core

docs/trace.md has the format, field by field.
"""
