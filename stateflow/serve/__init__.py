"""State over HTTP: `stateflow serve`, and its client."""
