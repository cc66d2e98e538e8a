// Package bank is shared by the payment examples: orders, payment providers that charge
// them, a client of the providers, and their books.
package bank
