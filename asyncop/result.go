package asyncop

// Result is the outcome of an element: a value, or an error.
type Result[OUT any] struct {
	Value OUT
	Err   error // if not nil, Value is ignored
}
