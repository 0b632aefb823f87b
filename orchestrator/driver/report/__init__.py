"""Run card, summary and pictures, for people."""
