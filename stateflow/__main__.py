"""`python -m stateflow`, where the `stateflow` script is not on the PATH."""

from stateflow.cli.main import app

app(prog_name="stateflow")
