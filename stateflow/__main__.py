"""`python -m stateflow`, where the `stateflow` script is not on the PATH."""

from stateflow.cli.entry import main

main()
