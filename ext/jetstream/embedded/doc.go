// Package embedded runs a NATS server with JetStream inside the program, without a port.
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
// To move to a separate server or a cluster, connect to it with nats.Connect.
//
// # Guarantees
//
// Confirmed writes are on disk: the server syncs each write (SyncAlways), some thousand a
// second on a usual disk. A cluster needs this, too: a killed server that does not sync
// may bring back removed messages, and then lead.
//
// Start refuses a directory that another server has open, in this process or another.
package embedded
