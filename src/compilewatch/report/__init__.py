"""Words, pages and charts: what people read of a stored run. It writes no file by itself."""
