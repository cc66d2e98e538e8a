// Package postgrestest runs a PostgreSQL server for a test: on loopback, in a directory
// of its own, to be killed and started again.
//
// It needs the programs of PostgreSQL (Debian: apt-get install postgresql), and the user
// postgres if the test runs as root. Without them a test is skipped, unless CI or
// WEIR_REQUIRE_POSTGRES is set in the environment: then it fails.
package postgrestest
