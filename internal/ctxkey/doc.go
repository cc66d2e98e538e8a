// Package ctxkey has the keys under which the context of an attempt answers to other packages of the house, without an allocation, and
// to none outside of it.
package ctxkey
