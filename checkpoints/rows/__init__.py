"""Pure: the columns of the tables, and what their rows mean."""
