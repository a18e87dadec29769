"""The privacy accountant: what a history of private steps costs, and what a privacy target allows."""
