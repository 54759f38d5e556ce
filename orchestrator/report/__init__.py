"""Results: statistics, figures, recommendation, export."""
