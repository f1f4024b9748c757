"""The two commands on their own: python -m tests.serve.command serve ..."""

from __future__ import annotations

import typer

from stateflow.cli.main import Commands
from stateflow.cli.query import query
from stateflow.cli.serve import serve

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
app.command("query")(query)
app.command("serve")(serve)

if __name__ == "__main__":
    app(prog_name="stateflow")
