"""Presentation of results: tables, plots, the HTML page and the listings of the terminal."""
