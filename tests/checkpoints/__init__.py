"""Small random checkpoints in the layouts that exist in the wild, made with Hugging Face's own classes."""
