// Package jetstream is the root of the module for NATS JetStream; see its packages. The server for one process, and for tests,
// is in the module ext/jetstream/embedded.
package jetstream
