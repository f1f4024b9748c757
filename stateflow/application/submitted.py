"""The `stateflow` command as an application of spark-submit: `spark-submit ... submitted.py run FILE:PIPELINE ...`"""

from stateflow.cli.main import app
from stateflow.jobs.run_secrets import take_mounted

take_mounted()
app(prog_name="stateflow")
