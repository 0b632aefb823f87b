"""Ray itself: a private one, or one that is joined."""
