// Package deadletters makes a file of JSON lines of dead letters, reads such a file, and groups dead letters that failed alike.
//
// A dead letter is a message in a queue of a store, as any other, with the cause for which it is there ([store.Cause]) and its
// history. To look at dead letters, ask the store: [store.Inspector] has List and Count. To send them back or remove them, start a job:
// package jobs.
package deadletters
