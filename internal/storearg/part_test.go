package storearg_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/storearg"
)

// Law W1: the name of a queue determines the queue of the program that it belongs to.
func TestPartOf(t *testing.T) {
	for name, want := range map[string]storearg.Part{
		"orders":              {Queue: "orders"},
		"orders-blocked":      {Queue: "orders", Role: storearg.RoleBlocked},
		"orders-retry-1":      {Queue: "orders", Role: storearg.RoleLayer, Layer: 1},
		"orders-retry-12":     {Queue: "orders", Role: storearg.RoleLayer, Layer: 12},
		"orders-dead":         {Queue: "orders", Role: storearg.RoleDead},
		"a-retry-1-retry-2":   {Queue: "a-retry-1", Role: storearg.RoleLayer, Layer: 2},
		"orders-dead-retry-1": {Queue: "orders-dead", Role: storearg.RoleLayer, Layer: 1},
		"orders-retry-1-dead": {Queue: "orders-retry-1", Role: storearg.RoleDead},
		"orders-retry-0":      {Queue: "orders-retry-0"},
		"orders-retry--1":     {Queue: "orders-retry--1"},
		"orders-retry-":       {Queue: "orders-retry-"},
		"orders-retry-a":      {Queue: "orders-retry-a"},
		"orders-dead2":        {Queue: "orders-dead2"},
		"dead":                {Queue: "dead"},
		"-dead":               {Queue: "-dead"}, // it would belong to a queue without a name
		"-blocked":            {Queue: "-blocked"},
		"-retry-1":            {Queue: "-retry-1"},
		"":                    {},
	} {
		require.Equal(t, want, storearg.PartOf(name), name)
	}
	for _, queue := range []string{"orders", "a b", "dead", "-dead"} {
		require.Equal(t, storearg.Part{Queue: queue, Role: storearg.RoleLayer, Layer: 3}, storearg.PartOf(storearg.LayerOf(queue, 3)))
		require.Equal(t, storearg.Part{Queue: queue, Role: storearg.RoleBlocked}, storearg.PartOf(storearg.BlockedOf(queue)))
		require.Equal(t, storearg.Part{Queue: queue, Role: storearg.RoleDead}, storearg.PartOf(storearg.DeadOf(queue)))
	}
}

func TestPartCompare(t *testing.T) {
	names := []string{"q-dead", "q-retry-10", "q-retry-2", "q", "q-blocked"}
	slices.SortFunc(names, func(a, b string) int { return storearg.PartOf(a).Compare(storearg.PartOf(b)) })
	require.Equal(t, []string{"q", "q-blocked", "q-retry-2", "q-retry-10", "q-dead"}, names)
}
