"""Results on a terminal: tables, panels, source excerpts, progress."""
