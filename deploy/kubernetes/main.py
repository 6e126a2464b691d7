"""The driver's main file on Kubernetes: Spark wants a file to run, and lockkeeper is a command."""

from streaming.cli import main

main()
