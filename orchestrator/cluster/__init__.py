"""Ray, and nothing else imports ray: a private or a joined one, room in it, one project on all nodes, the members' actors."""
