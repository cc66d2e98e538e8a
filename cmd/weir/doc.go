// Command weir inspects the database of programs that use weir, and handles the messages
// in it: dead letters, messages waiting in retry layers, staged messages of an outbox,
// and requests with idempotency keys.
//
//	weir dead list                                   messages that were given up
//	weir dead show ID                                a dead letter, its history and payload
//	weir dead count                                  how many there are, by cause and reason
//	weir dead merge --queue orders-dead --to orders  sends them back to the program
//	weir dead purge --queue orders-dead --all        removes them
//	weir dead export, weir dead import               as JSON lines
//	weir layers                                      the queues and their messages
//	weir outbox                                      staged messages, and their relay
//	weir keys orders                                 messages and dead letters, by key
//	weir cancel orders --key customer-7              removes its messages and ends its calls
//	weir key hold orders customer-7                  keeps workers from taking its messages
//	weir requests                                    requests with idempotency keys
//
// The database is a URL in the flag --db or in the environment variable WEIR_DB:
//
//	sqlite:orders.db, sqlite:///var/lib/orders.db
//	postgres://user:password@host/database
//	nats://user:password@host:4222,host:4222/STREAM (default: weir)
//	tls://host:4222/STREAM?creds=FILE
//	kafka://user:password@host:9092,host:9092?sasl=scram-sha-512&tls=true&group=GROUP
//
// STREAM is a NATS JetStream stream with an engine's queues (ext/jetstream). A user
// without a password is a token. creds, nkey, ca, cert and key name files. JetStream has
// no requests with keys.
//
// On Kafka a queue is a topic. weir shows dead letters that were not merged, and for the
// group's topics the messages that it has not settled. A purge cuts off the whole topic,
// and cannot select messages. Messages that are imported twice are stored twice. Kafka
// has neither outboxes nor requests with keys. sasl is plain, scram-sha-256 or
// scram-sha-512; tls=true, or one of ca, cert and key, encrypts. sasl=plain sends the
// password unencrypted, so it needs TLS or plaintext=true.
//
// Output and errors contain no passwords. The environment variable also hides them from
// lists of processes.
//
// Tables fit the width of the terminal, or COLUMNS. Arguments for other commands are
// never cut; -o wide never cuts, -o name prints only ids or names, and output to a pipe
// is never cut. With --json the output is JSON, one object per line. Times are UTC.
// Control characters in stored text are escaped. weir asks before it removes or moves
// messages. --yes answers in advance, and is required without a terminal. A queue without
// messages may be a mistyped name, so weir asks about a merge into it even with --yes;
// --to-empty confirms the name.
//
// An SQLite file without write permission can be read.
//
// The exit status is 0, 1 after an error or if the answer was no, and 2 for wrong usage.
package main
