// Package bank has the payment examples' orders, providers with books, and client.
package bank
