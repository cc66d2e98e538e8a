// Package bank is what the examples with payments share: orders, the payment providers
// that charge them, the client that calls those, and their books.
package bank
