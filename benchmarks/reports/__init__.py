"""What is made of committed rows: the tables of the pages, and whether the rows come back. And the demonstration."""
