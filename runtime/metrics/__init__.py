"""Metrics of a run. Start with `step_record`: the figures of a step, as metrics.jsonl has them.

    step_record  one closed step
    accumulator  StepMeter: adds up the core's transitions and workers' reports to one record a step
    sample_table samples as a table for TensorBoard and W&B
    writers      metrics.jsonl, TensorBoard, Prometheus, W&B
    plot         plot.png

A new metric is a field of StepRecord and a line in `StepMeter._complete`; docs/training.md lists them all.
"""
