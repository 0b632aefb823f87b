"""How one generation ends and the next one is formed. Pure."""
