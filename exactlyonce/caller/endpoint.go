package caller

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/weirflow/weir/internal/guard"
)

// endpoint is one path, or all paths below it, whose requests get an id.
type endpoint struct {
	origin string // see originOf
	path   string
	below  bool // path ends with a slash
}

// mustParseEndpoint parses an absolute URL.
func mustParseEndpoint(s string) endpoint {
	u, err := url.Parse(s)
	if err != nil {
		panic("caller: Transport: endpoint: " + guard.Text(err)) // err contains the URL
	}
	text := guard.URL(u)
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		panic(fmt.Sprintf("caller: Transport: endpoint %q is not an absolute HTTP URL", text))
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		panic(fmt.Sprintf("caller: Transport: endpoint %q has more than scheme, host and path", text))
	}
	p := cleanPath(u.Path)
	return endpoint{origin: originOf(u), path: p, below: strings.HasSuffix(p, "/")}
}

func (e endpoint) names(origin, path string) bool {
	return origin == e.origin && (path == e.path || e.below && strings.HasPrefix(path, e.path))
}

// originOf returns scheme, host and port in normal form, or "".
func originOf(u *url.URL) string {
	if u.Opaque != "" || u.Host == "" {
		return ""
	}
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return scheme + "://" + host
}

// cleanPath resolves dots and slashes as a server would: /charges/../refunds is not below
// /charges/.
func cleanPath(p string) string {
	c := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

// isSafe reports whether a method has no effect (RFC 9110, 9.2.1).
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}
