"""The `stateflow` command as an application of spark-submit: `spark-submit ... submitted.py run FILE:PIPELINE ...`"""

import sys

from stateflow.cli.entry import refuse_host
from stateflow.cli.main import app
from stateflow.jobs.run_secrets import take_mounted

take_mounted()
if (code := refuse_host(sys.argv[1:])) is not None:
    sys.exit(code)
app(prog_name="stateflow")
