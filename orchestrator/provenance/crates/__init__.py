"""A record that travels: its files as one RO-Crate, what they are proved by, and the way of reading one that others sent."""
