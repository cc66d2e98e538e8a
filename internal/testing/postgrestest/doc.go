// Package postgrestest runs a PostgreSQL server on loopback that a test can kill and
// restart.
//
// It needs the programs of PostgreSQL (Debian: apt-get install postgresql), and the user
// postgres if the test runs as root. Without them a test is skipped, or fails if CI or
// WEIR_REQUIRE_POSTGRES is set.
package postgrestest
