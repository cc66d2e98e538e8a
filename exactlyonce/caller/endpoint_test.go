package caller

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEndpoints(t *testing.T) {
	for _, tt := range []struct {
		endpoint, url string
		named         bool
	}{
		{"https://pay.example.com/charges", "https://pay.example.com/charges", true},
		{"https://pay.example.com/charges", "https://pay.example.com/charges?currency=EUR#top", true},
		{"https://pay.example.com/charges", "https://user:secret@pay.example.com/charges", true},
		{"https://pay.example.com/charges", "https://pay.example.com/charges/", false},
		{"https://pay.example.com/charges", "https://pay.example.com/charges/7", false},
		{"https://pay.example.com/charges", "https://pay.example.com/charge", false},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges/", true},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges/7/capture", true},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges", false},
		{"https://pay.example.com/charges/", "https://pay.example.com/chargesback", false},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges/../refunds", false},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges/%2e%2e/refunds", false},
		{"https://pay.example.com/charges/", "https://pay.example.com/charges/..%2Frefunds", false},
		{"https://pay.example.com/charges/", "https://pay.example.com//charges/./7", true},
		{"https://pay.example.com", "https://pay.example.com", true},
		{"https://pay.example.com", "https://pay.example.com/anything/../else", true},
		{"https://PAY.example.com:443/charges", "HTTPS://pay.EXAMPLE.com/charges", true},
		{"http://pay.example.com/charges", "http://pay.example.com:80/charges", true},
		{"http://pay.example.com/charges", "http://pay.example.com:8080/charges", false},
		{"http://pay.example.com/charges", "https://pay.example.com/charges", false},
		{"http://pay.example.com/charges", "https://pay.example.com:80/charges", false},
		{"https://pay.example.com/charges", "https://pay.example.com.evil.example/charges", false},
		{"https://pay.example.com/charges", "https://sub.pay.example.com/charges", false},
		{"http://[::1]:8080/a", "http://[::1]:8080/a", true},
	} {
		t.Run(tt.endpoint+" "+tt.url, func(t *testing.T) {
			transport := Transport(nil, "http://other.example.com/", tt.endpoint).(*transport)
			req, err := http.NewRequest(http.MethodPost, tt.url, nil)
			require.NoError(t, err)
			require.Equal(t, tt.named, transport.names(req))
			req.Host = "service-of-that-host.example.com"
			require.False(t, transport.names(req), "a Host of its own is another service")
			req.Host, req.URL.Opaque = "", "//pay.example.com/charges"
			require.False(t, transport.names(req))
		})
	}
}

func TestEndpointsThatAreNone(t *testing.T) {
	for endpoint, message := range map[string]string{
		"":                               `endpoint "" is not an absolute HTTP URL`,
		"pay.example.com/charges":        "is not an absolute HTTP URL",
		"/charges":                       "is not an absolute HTTP URL",
		"ftp://pay.example.com/":         "is not an absolute HTTP URL",
		"https:///charges":               "is not an absolute HTTP URL",
		"https://u@pay.example.com/":     "has more than scheme, host and path",
		"https://pay.example.com/?a=b":   "has more than scheme, host and path",
		"https://pay.example.com/?":      "has more than scheme, host and path",
		"https://pay.example.com/#a":     "has more than scheme, host and path",
		"https://pay.example.com:nine/a": "invalid port",
	} {
		func() {
			defer func() { require.Contains(t, recover(), message) }()
			Transport(nil, endpoint)
		}()
	}
	require.PanicsWithValue(t, "caller: Transport: no endpoint is named", func() { Transport(nil) })
}
