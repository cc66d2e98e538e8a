// Package flow has steps for pipelines of weir: map, filter, flat map. They let
// watermarks, barriers and other control elements pass, which the steps of the same name
// in go-streams do not, since they assert the type of each element.
//
//	source.Via(flow.NewMap(strings.TrimSpace)).Via(operator).To(sink)
//
// A message (package delivery) stays a message: the function gets its value, and the
// acknowledgement passes to the value that it returns.
//
//	element         Map           Filter                     FlatMap
//	value           f(value)      the value, or nothing      all that f returns
//	Message[T]      Message[R]    the message, or its Ack    parts of the message; its Ack if there are none
//	watermark, …    as it is      as it is                   as it is
//
// A file that also needs go-streams' own package flow, for FanOut, gives that import a
// name:
//
//	import (
//		streamsflow "github.com/reugn/go-streams/flow"
//
//		"github.com/weirflow/weir/flow"
//	)
//
// Mixing them up does not compile: go-streams' NewMap, NewFilter and NewFlatMap take a
// second argument.
package flow
