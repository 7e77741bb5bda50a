"""Scaling of a job: measurements on layouts, bottlenecks, forecasts of other layouts."""
