"""Results for people: tables, plots, and what a terminal shows."""
