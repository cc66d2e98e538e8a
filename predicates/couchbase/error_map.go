package couchbase

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// ErrorMap describes the statuses of a server node: the KV error map of RFC 0013. It
// never changes; a newer map replaces it.
type ErrorMap struct {
	Version  int // of the format
	Revision int // of the content

	retry map[Status]bool
}

// ParseErrorMap reads the JSON of a server's answer to GET_ERROR_MAP. For each status it
// keeps whether its attributes contain a retry indication: retry-now, retry-later or
// auto-retry. It ignores retry specifications: RFC 0049 leaves delays to the strategy.
func ParseErrorMap(text []byte) (*ErrorMap, error) {
	var raw struct {
		Version  int `json:"version"`
		Revision int `json:"revision"`
		Errors   map[string]struct {
			Attrs []string `json:"attrs"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("couchbase: error map: %w", err)
	}
	m := &ErrorMap{Version: raw.Version, Revision: raw.Revision, retry: make(map[Status]bool)}
	for key, e := range raw.Errors {
		status, err := strconv.ParseUint(key, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("couchbase: error map: status %q: %w", key, err)
		}
		m.retry[Status(status)] = slices.ContainsFunc(e.Attrs, func(attr string) bool {
			return attr == "retry-now" || attr == "retry-later" || attr == "auto-retry"
		})
	}
	return m, nil
}

// Retry reports whether the map has a retry indication for s. It returns false if m is
// nil.
func (m *ErrorMap) Retry(s Status) bool { return m != nil && m.retry[s] }
