package failed

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/message"
)

// Outage is the outage of a backend that made a visit fail. [message.Meta].Outage has its
// stored form, such as "2;9m59s;payments".
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
// layer. The message may then return early, when the backend recovers. early is the part
// of its delay that its service has not demanded.
//
// A message that has returned early before must wait for its delay this time. Otherwise a
// backend that fails and recovers again and again would use up its visits.
func (r *Router[T]) noteOutage(ctx context.Context, to *Route, early time.Duration) {
	backend, _ := ctx.Value(ctxkey.Outage{}).(string)
	meta := &to.Meta
	isOutage := backend != ""
	canReturnEarly := early > 0 && r.HasLeases
	if isOutage && canReturnEarly && r.hasWaited(meta) {
		meta.Outage = Outage{Visit: meta.Visit, Early: early, Backend: backend}.String()
	}
}

// hasWaited reports whether the message has waited for the full delay of each layer
// before this visit.
func (r *Router[T]) hasWaited(meta *message.Meta) bool {
	isUnknown := meta.Merges > 0 && meta.Visit > 1 // FirstFailure is from before the merge
	if isUnknown {
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
