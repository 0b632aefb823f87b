"""Messages between members, and when they are sent: topologies, transports, synchronization, schedules of pipelines,
collectives."""
