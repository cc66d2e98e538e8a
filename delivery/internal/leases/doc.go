// Package leases has the source of a queue in a store: it takes messages, extends their
// leases while they are in flight, and records how they are settled.
package leases
