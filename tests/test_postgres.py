"""`make postgres` brings the programs, and no database of the machine's own."""

from __future__ import annotations

from scripts.postgres import without_database

AS_IT_COMES = '# Default values for pg_createcluster(8)\n\n# Create a "main" cluster when a new version is installed\n#create_main_cluster = true\n'


def test_the_package_makes_no_database_of_its_own() -> None:
    assert without_database(AS_IT_COMES) == AS_IT_COMES + "create_main_cluster = false\n"
    assert without_database("") == "create_main_cluster = false\n"


def test_what_somebody_has_decided_stays() -> None:
    for decided in ("create_main_cluster = true\n", "start_conf = 'auto'\n  create_main_cluster = false\n"):
        assert without_database(decided) == decided
