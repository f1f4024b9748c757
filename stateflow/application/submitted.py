"""The `stateflow` command as an application of spark-submit: `spark-submit ... submitted.py run FILE:PIPELINE ...`"""

from stateflow.cli.main import app

app(prog_name="stateflow")
