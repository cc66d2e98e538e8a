package server

// state is what an attempt has found.
type state int

const (
	stateNew        state = iota // it runs the request
	stateInProgress              // another attempt runs
	stateCompleted               // an answer is stored
)
