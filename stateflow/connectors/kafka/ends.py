"""The ends of topics, for those who want to know whether there is something to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.topic import kafka


def ends_of(topics: Sequence[str], servers: str, connection: str = "") -> Mapping[str, Mapping[int, int]]:
    """By topic and partition. NotFoundError for a topic that is not there."""
    return {topic: Cluster(kafka(topic, bootstrap=servers, connection=connection)).ends() for topic in topics}
