package failed

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/message"
)

// Outage is a backend's outage that made a visit fail, as [message.Meta].Outage stores
// it.
type Outage struct {
	Visit   int
	Early   time.Duration // how long before Meta.Due the message may be delivered once the backend recovers
	Backend string
}

// longestOutage is the limit of Meta.Outage, in bytes.
const longestOutage = 1 << 10

// String returns the stored form, or "" if it is too long.
func (o Outage) String() string {
	text := strconv.Itoa(o.Visit) + ";" + o.Early.String() + ";" + o.Backend
	if len(text) > longestOutage {
		return ""
	}
	return text
}

// ReadOutage reads the stored form. ok is false if text is invalid.
func ReadOutage(text string) (o Outage, ok bool) {
	visit, rest, _ := strings.Cut(text, ";")
	early, name, found := strings.Cut(rest, ";")
	n, visitErr := strconv.Atoi(visit)
	d, earlyErr := time.ParseDuration(early)
	if !found || visitErr != nil || earlyErr != nil || d < 0 {
		return Outage{}, false
	}
	return Outage{Visit: n, Early: d, Backend: name}, true
}

// noteOutage notes the outage that made the visit fail, for a message that goes to a
// layer. early is the part of its delay that its service has not demanded. A message that
// has already returned early waits for its delay, so that a backend that fails and
// recovers again and again does not use up its visits.
func (r *Router[T]) noteOutage(ctx context.Context, to *Route, early time.Duration) {
	name, _ := ctx.Value(ctxkey.Outage{}).(string)
	meta := &to.Meta
	if name != "" && early > 0 && r.HasLeases && r.hasWaited(meta) {
		meta.Outage = Outage{Visit: meta.Visit, Early: early, Backend: name}.String()
	}
}

// hasWaited reports whether the message has waited for all layers before this visit.
// After a merge that is known only for visit 1: FirstFailure is from before the merge.
func (r *Router[T]) hasWaited(meta *message.Meta) bool {
	if meta.Merges > 0 && meta.Visit > 1 {
		return false
	}
	return meta.LastFailure.Sub(meta.FirstFailure) >= r.delaysBefore(meta.Visit)
}

// delaysBefore returns the sum of the layers' delays before a visit, without jitter.
func (r *Router[T]) delaysBefore(visit int) (sum time.Duration) {
	for i := range visit - 1 {
		sum += r.Layers[min(i, len(r.Layers)-1)].Delay
	}
	return sum
}
