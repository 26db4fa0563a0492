//! Tests of replicas without a server of PostgreSQL.
