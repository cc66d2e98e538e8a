// Package pgtest runs a PostgreSQL server for a test, through package postgrestest.
package pgtest
