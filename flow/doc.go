// Package flow contains steps for weir's pipelines: map, filter, flat map. They let
// watermarks, barriers and other control elements pass, unlike the steps of the same name
// in go-streams.
//
//	source.Via(flow.NewMap(strings.TrimSpace)).Via(operator).To(sink)
//
// A message (package delivery) stays a message: the function receives and returns its
// value.
//
//	element         Map           Filter                     FlatMap
//	value           f(value)      the value, or dropped      all results of f
//	Message[T]      Message[R]    the message, or its Ack    parts of the message, or its Ack if f returns no results
//	watermark, …    unchanged     unchanged                  unchanged
//
// A file that also needs go-streams' package flow, for FanOut, gives that import a name:
//
//	import (
//		streamsflow "github.com/reugn/go-streams/flow"
//
//		"github.com/weirflow/weir/flow"
//	)
//
// Mixing them up does not compile.
package flow
