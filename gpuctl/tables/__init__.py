"""Tables and live views for people. rich is imported in this folder only."""
