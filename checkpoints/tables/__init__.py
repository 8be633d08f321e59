"""Where the tables are, and through which library they are read and written."""
