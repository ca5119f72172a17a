"""`python -m actors.cli`: the command line where no console script is on the path."""

from actors.cli.app import main

main()
