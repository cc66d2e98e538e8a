// Package offsets knows what is settled of a partition: the position to commit, and the
// ranges above it, which travel in the metadata of the commit.
package offsets
