"""What of an answer is reasoning, what are calls of tools, and what is said to the user."""
