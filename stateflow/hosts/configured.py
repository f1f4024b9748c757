"""Whether the host that the configuration names takes runs."""

from __future__ import annotations

from stateflow.config.options import Options
from stateflow.errors import UsageError
from stateflow.hosts.client import Refused, ask, is_kept
from stateflow.hosts.settings import folder_of


def lacking_host(options: Options) -> str:
    """Why no run gets to its host; empty if one does, or is not to."""
    if not options.host:
        return "host_only is set, and host is not: no run starts" if options.host_only else ""
    try:
        folder = folder_of(options.host)
        ask(folder)
    except UsageError as error:
        return str(error)
    except Refused as refusal:
        if not is_kept(folder):
            return f"the host {options.host}, set by {options.origin('host')}, takes no runs: {refusal}"
    return ""
