// Command weir looks into the database of programs that use weir, and helps with what
// waits there: dead letters, messages that wait in the layers of a ladder, staged
// messages of an outbox, requests with idempotency keys.
//
//	weir dead list                                   what was given up
//	weir dead show ID                                a dead letter, its history and payload
//	weir dead count                                  how many there are, by cause and reason
//	weir dead merge --queue orders-dead --to orders  sends them back to the program
//	weir dead purge --queue orders-dead --all        removes them
//	weir dead export, weir dead import               as JSON lines
//	weir layers                                      the queues, and how much waits there
//	weir outbox                                      staged messages, and their relay
//	weir keys                                        requests that are not finished
//
// The database is a URL in the flag --db or in the environment variable WEIR_DB:
//
//	sqlite:orders.db, sqlite:///var/lib/orders.db
//	postgres://user:password@host/database
//	nats://user:password@host:4222,host:4222/STREAM (default: weir)
//	tls://host:4222/STREAM?creds=FILE
//	kafka://user:password@host:9092,host:9092?sasl=scram-sha-512&tls=true&group=GROUP
//	file:DIR
//
// DIR is a directory of dead letters that a program keeps without a database (package
// deadfile). The program may be running. They can be listed, shown, counted and exported;
// ARRIVED is the time of their last failure. To purge or merge a choice of them, import
// DIR/dead.jsonl into a store; weir dead import --create makes one.
//
// STREAM is a stream of NATS JetStream with the queues of an engine (ext/jetstream). A
// user without a password is a token. The parameters creds, nkey, ca, cert and key name
// files. JetStream has no requests with keys.
//
// On Kafka a queue is a topic. Dead letters are those that were not merged; of the topics
// of the group, what it has not settled is shown. To purge is to cut off the whole topic,
// so there is no choice. What is imported twice is there twice. Kafka has neither
// outboxes nor requests with keys. The parameter sasl is plain, scram-sha-256 or
// scram-sha-512; tls=true, or one of ca, cert and key, encrypts. Because sasl=plain sends
// the password as it is, it needs TLS, or plaintext=true.
//
// Passwords are in no output and no error of the command. In the environment variable
// they are in no list of processes either.
//
// Tables fit the terminal, or COLUMNS, but what other commands take as an argument is
// never cut; -o wide cuts nothing, -o name prints ids or names alone, and a pipe gets
// everything. With --json the output is JSON, one object a line. Times are UTC. Control
// characters in what is stored are escaped. Before it removes or moves anything, weir
// asks; --yes answers in advance, and without a terminal that is required. A queue
// without messages may be a mistyped name: to merge into one is asked about even with
// --yes; --to-empty says that it is right.
//
// A file of SQLite that the user may not write can be read.
//
// The exit status is 0, 1 after an error, or if the answer was no, and 2 for a wrong
// usage.
package main
