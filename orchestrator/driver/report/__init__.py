"""What people read: run card, summary, pictures."""
