// Package deadletters exports dead letters to a file of JSON lines, imports such a file, and groups dead letters by similar failures.
//
// A dead letter is a message in a queue of a store, like any other, with the cause of its failure ([store.Cause]) and its history. To look at
// dead letters, ask the store: [store.Inspector] has List and Count. To send them back or remove them, start a job: package jobs.
package deadletters
