"""What is shown of results: tables, pages, JUnit, recordings."""
