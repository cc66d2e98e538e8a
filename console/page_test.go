package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNum(t *testing.T) {
	for n, text := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1: "-1", -999: "-999", -123456: "-123,456"} {
		require.Equal(t, text, num(n))
	}
}

func TestTimeElement(t *testing.T) {
	require.EqualValues(t, "–", timeElement(time.Time{}))
	at := time.Date(2026, 1, 2, 4, 5, 6, 7, time.FixedZone("", 3600))
	require.EqualValues(t, `<time datetime="2026-01-02T03:05:06Z">2026-01-02 03:05:06Z</time>`, timeElement(at))
}
