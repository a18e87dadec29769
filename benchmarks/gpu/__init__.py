"""Everything that a GPU should show, as one list of jobs."""
