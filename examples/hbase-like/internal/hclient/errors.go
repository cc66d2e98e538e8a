package hclient

import (
	"errors"
	"fmt"
)

// ErrClosed is the error of a Get on a closed client.
var ErrClosed = errors.New("hclient: client closed")

// NotServingRegionError says that the server asked does not serve the region of
// the row: it has moved. The client has forgotten where the region was.
type NotServingRegionError struct {
	Server string // host:port
	Region string
	Row    string
}

func (e *NotServingRegionError) Error() string {
	return fmt.Sprintf("hclient: %s does not serve region %q of row %q", e.Server, e.Region, e.Row)
}

// ConnectionError says that a server could not be reached, or that the connection broke
// before it answered.
type ConnectionError struct {
	Server string // host:port
	Err    error
}

func (e *ConnectionError) Error() string {
	return fmt.Sprintf("hclient: connection to %s: %v", e.Server, e.Err)
}

// Unwrap returns what happened to the connection.
func (e *ConnectionError) Unwrap() error { return e.Err }

// RemoteError is a server's refusal of a request. Trying again does not help.
type RemoteError struct {
	Server  string // host:port
	Message string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("hclient: %s: %s", e.Server, e.Message)
}
