"""`python -m revela` runs `revela`."""

from revela.cli import main

main()
