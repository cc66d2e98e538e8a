// Package embedded runs a NATS server with JetStream in the process of the program, without a port: queues for the workers of
// one process, and the same engine in tests as in production.
//
//	server, err := embedded.Start(dir)
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
// Any other program goes on from there as with a server of its own: to move to a cluster, connect to that with nats.Connect.
//
// # Guarantees
//
// What the server has confirmed is on disk: it syncs each write (SyncAlways). That costs a sync for each message: some thousand a
// second on a usual disk. Leave it so in a cluster, too ([WithCluster]): a server that does not sync, and is killed, may bring back
// messages that were removed, and then lead.
//
// A directory belongs to one server at a time: Start refuses one that another server has open, in this process or another one.
package embedded
