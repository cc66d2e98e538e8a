// Package pgtest runs a PostgreSQL server for a test, as package postgrestest does, and
// statements on it.
package pgtest
