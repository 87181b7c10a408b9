"""Seeded drawings of charts with questions whose answers are known, in the manner of ChartQA."""
