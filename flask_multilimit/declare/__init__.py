"""What is said when Python imports: limiters, their types and rules."""
