//go:build !linux

package kafka

import "testing"

func libs() string { return "" }

func realBroker(testing.TB) []string { return nil }

func endRealBroker() {}

func killedChild() {}
