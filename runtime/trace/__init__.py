"""The trace of a run: what the core was told, what changed, which effects followed, and what only the runtime knows.

    control path ── Trace.observe, Trace.note ──► a queue ── thread ──► trace.jsonl, rotated parts
                                        └───────► a ring in memory ──► a file, when the watchdog fires or on SIGUSR1

    notes       what the runtime knows and the core doesn't, one NamedTuple per kind
    kinds       name, code on disk and fields of every event, change, effect and note
    vocabulary  one row per happening: event, rules, change, effects, codes (a table in docs/architecture.md)
    records     one line each: transition, note, snapshot; encoded and decoded
    vitals      which attempt runs where since when, open calls, workers: a fold over records
    files       the parts of a trace, rotated and compressed; the header; the core of a recorded run
    choose      lines chosen in raw bytes
    reader      lines and records, streamed; `follow` a live trace
    writer      `Trace`, and the `trace:` block of the configuration
    moment      `state_at`: core and vitals at any moment
    select      records by step, group, prompt, machine, time and kind
    show        records as printable text
    replay      recorded events fed to today's core

Start with `writer` for how a record gets to disk, and with `kinds` for what is in it. Codes, fields and record keys are
a file format: old traces must stay readable. docs/trace.md has it, field by field.
"""
