"""The demo: a broker, policies, traffic and the job on one machine, shown live and checked at the end."""
