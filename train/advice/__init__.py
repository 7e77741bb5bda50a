"""Advice before machines are rented: a job's memory, time and cost, computed by formulas."""
