"""Ray, which nothing else imports: a private or a joined one, resources, one project on all nodes, the members' actors."""
