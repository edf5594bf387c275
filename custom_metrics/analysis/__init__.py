"""What is made of finished runs: read back, as a table, compared, and their judges' agreement."""
