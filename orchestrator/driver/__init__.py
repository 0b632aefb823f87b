"""One run as seen from the driver: its folder, its members, its progress, its summary."""
