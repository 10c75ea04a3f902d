"""Evaluation: methods and models on tasks with known answers, with intervals, paired tests and their cost.

`evaluation_task.py` is a task; `builtin.py` and `task_file.py` make tasks. `run_methods.py` runs methods,
`samples.py` records samples, and `analyse.py` computes methods from recorded samples. `record.py` is the file
that a run resumes from; `statistics.py` and `report.py` make the figures. `python -m glassloop.evaluate`
needs neither typer nor rich.
"""
