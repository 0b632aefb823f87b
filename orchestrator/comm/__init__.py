"""Who sends what to whom, and when: topologies, transports, synchronization, schedules of pipelines, collectives."""
