package hclient

import "fmt"

// NotServingRegionError reports that the region of the row has moved. The client has
// removed the region from its cache.
type NotServingRegionError struct {
	Server string // host:port
	Region string
	Row    string
}

func (e *NotServingRegionError) Error() string {
	return fmt.Sprintf("hclient: %s does not serve region %q of row %q", e.Server, e.Region, e.Row)
}

// ConnectionError reports that a server could not be reached, or that the connection
// broke before the answer.
type ConnectionError struct {
	Server string // host:port
	Err    error
}

func (e *ConnectionError) Error() string {
	return fmt.Sprintf("hclient: connection to %s: %v", e.Server, e.Err)
}

// Unwrap returns the cause.
func (e *ConnectionError) Unwrap() error { return e.Err }
