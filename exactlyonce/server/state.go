package server

// state is how an attempt found its request.
type state int

const (
	stateNew        state = iota // it runs the request
	stateInProgress              // another attempt runs
	stateCompleted               // an answer is stored
)
