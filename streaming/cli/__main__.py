"""`python -m streaming.cli` is `lockkeeper`."""

from streaming.cli import main

main()
