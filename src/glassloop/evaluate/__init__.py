"""Evaluation: methods and models on tasks with known answers, with intervals, paired tests and their cost.

`task.py` is a task, `builtin.py` and `task_file.py` make tasks, `draw.py` records samples, `methods.py` runs
methods, `record.py` is the file that a run resumes from, `analyse.py` computes methods from recorded samples,
and `statistics.py` and `report.py` make the figures. `python -m glassloop.evaluate` needs neither typer nor
rich.
"""
