"""Executors: how a step's plan reaches the ranks, in this process or in processes of their own."""
