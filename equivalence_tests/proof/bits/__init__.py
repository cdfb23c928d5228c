"""Programs as graphs, under rules that keep every bit."""
