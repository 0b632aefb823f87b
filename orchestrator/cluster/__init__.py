"""Ray, and nothing else imports ray: the local Ray, the actors that live members' lives, and what is heard from them."""
