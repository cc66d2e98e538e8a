// Package pgtest runs a PostgreSQL server for a test, as package pgserver does, and statements on it.
package pgtest
