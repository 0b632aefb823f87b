"""The stories, one per verb of the command line. Each is thin: it says in which order the floors below are used."""
