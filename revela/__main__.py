"""`python -m revela` is `revela`."""

from revela.cli import main

main()
