"""Results as tables, pages, JUnit's XML and recordings."""
