// Package offsets keeps the settled offsets of a partition: the position to commit, and
// the ranges above it, which are stored in the metadata of the commit.
package offsets
