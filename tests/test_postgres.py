"""The private PostgreSQL server does what other tests rest on."""

import psycopg

from .postgres import PostgresServer


def test_each_database_is_new_and_empty(postgres: PostgresServer) -> None:
    first, second = postgres.new_database(), postgres.new_database()
    with psycopg.connect(first) as connection:
        connection.execute("create table mark ()")
    with psycopg.connect(second) as connection:
        assert connection.execute("select to_regclass('mark')").fetchone() == (None,)


def test_what_was_committed_survives_a_crash(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with psycopg.connect(url) as connection:
        connection.execute("create table number as select 7 as value")
    postgres.stop("immediate")
    postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("select value from number").fetchone() == (7,)
