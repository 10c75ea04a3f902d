"""`python -m glassloop`: the same as the `glassloop` command."""

from glassloop.cli.main import main

main()
