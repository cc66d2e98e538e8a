// Package offsets tracks the settled offsets of a partition: the position to commit, and
// the settled ranges above it for the metadata of the commit.
package offsets
