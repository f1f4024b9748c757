"""The public surface, frozen: whoever changes it changes this list, and the changelog."""

from __future__ import annotations

import stateflow

FROZEN = """
Aggregate AggregatingState BroadcastState BusyError ColumnarContext ColumnarOperator ConnectedProcess Context
CorruptError CustomSerializer Delivery DisagreementError FencedError Flow IncompatibleError Job KeyedProcess KeyedStream
ListState MapState NotFoundError OperatorListState Output PartitionProcess Pipeline ReducingState StateTypeError StateflowError Stream
Timer UnavailableError UnionListState UsageError ValueState Window WindowBounds WindowProcess WindowedStream aggregate collect columns
count count_distinct count_window cumulative delta field files first hopping iceberg kafka last max mean memory min output per_partition pipeline postgres quantile session stddev sum
table testing top_values ttl tumbling variance
"""


def test_the_public_names_are_these() -> None:
    assert sorted(FROZEN.split()) == stateflow.__all__


def test_every_error_is_a_stateflow_error_with_an_exit_code_of_its_own() -> None:
    found = {name: getattr(stateflow, name) for name in stateflow.__all__ if name.endswith("Error")}
    assert all(issubclass(error, stateflow.StateflowError) for error in found.values())
    codes = {name: error.exit_code for name, error in found.items()}
    assert codes == {
        "StateflowError": 1,
        "UsageError": 2,
        "StateTypeError": 2,
        "NotFoundError": 3,
        "IncompatibleError": 4,
        "FencedError": 5,
        "CorruptError": 6,
        "DisagreementError": 7,
        "BusyError": 8,
        "UnavailableError": 9,
    }


def test_the_testing_module_offers_the_harness() -> None:
    assert stateflow.testing.__all__ == [
        "ColumnarHarness",
        "FlowHarness",
        "KeyedHarness",
        "PartitionHarness",
        "SinkConformance",
        "SourceConformance",
    ]


def test_what_users_chain_is_there() -> None:
    offered = {
        stateflow.Stream: "append changes_as_rows collect dead_letters deduplicate for_each_batch key_by process_partition side transform union upsert",
        stateflow.KeyedStream: "aggregate connect enrich join join_asof join_latest latest map_with_state process process_arrow top window",
    }
    for owner, names in offered.items():
        found = {
            n
            for n, v in vars(owner).items()
            if not n.startswith("_") and (callable(v) or isinstance(v, property))
        }
        assert found == set(names.split())
