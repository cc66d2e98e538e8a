// Package postgrestest runs a PostgreSQL server for a test: on loopback and in a separate
// directory. The test can kill and restart it.
//
// It needs the programs of PostgreSQL (Debian: apt-get install postgresql), and the user
// postgres if the test runs as root. Without them a test is skipped. If CI or
// WEIR_REQUIRE_POSTGRES is set, it fails.
package postgrestest
