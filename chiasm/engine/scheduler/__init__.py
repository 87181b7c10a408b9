"""What the next step computes, decided without tensors."""
