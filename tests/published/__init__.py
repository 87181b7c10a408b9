"""What is known of published checkpoints, in our own words, and where their files are if they are at hand."""
