"""The Python behind the tasks of ``lm_eval_tasks``.

row → messages → (harness, model) → answer → judge calls → verdicts → scores → aggregates;
each arrow is one module's job: ``data``, ``prbench``, ``task``, ``answer``, ``judge``,
``statistics``.
"""
