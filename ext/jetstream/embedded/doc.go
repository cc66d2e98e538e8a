// Package embedded runs a NATS server with JetStream in the process of the program,
// without a port: queues for the workers of a process, and the same engine in tests as in
// production.
//
//	server, err := embedded.Start(dir, embedded.Config{})
//	if err != nil {
//		return err
//	}
//	defer server.Close()
//	nc, err := server.Connect()
//	if err != nil {
//		return err
//	}
//	defer nc.Close()
//	js, err := jetstream.New(nc)
//
// The rest of the program is the same as with a separate server: to move to a cluster,
// connect to it with nats.Connect.
//
// # Guarantees
//
// Confirmed writes are on disk: the server syncs each write (SyncAlways). That costs a
// sync for each message: some thousand a second on a usual disk. A cluster needs this
// setting, too ([Config]): a server that does not sync, and is killed, may bring back
// messages that were removed, and then lead.
//
// A directory belongs to a single server at a time: Start refuses a directory that
// another server has open, in this process or in another.
package embedded
