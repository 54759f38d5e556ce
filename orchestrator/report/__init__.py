"""Results: the figures of runs, their comparison, and the report.

Imports go one way: `page` -> `compare` -> `measure`. A report passes through them the other way:

1. `measure.load.read_runs` reads the store, a run at a time: its steps become a `MeasuredRun`.
2. `compare.results.results_of` makes conditions of repeats, workloads of conditions, a `BaselineComparison` of each
   condition, and the `Answer` of each workload, whose rows are conditions, best first.
3. `page.summary`, `page.questions` and `page.details` make sections of these; `page.render` writes them as HTML,
   Markdown and SVG, `page.data` as JSON and CSV. `pages.report` prints the answers in a terminal.
"""
