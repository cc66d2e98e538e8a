package store

// HeaderPointsTo is a header of a dead letter that is a pointer. A pointer lacks the
// bytes of its message, because the store of the dead letters has refused them. The value
// is the place where the message stays. Only weir sets this header: Queue.Put refuses the
// name, and a message that becomes a dead letter with its bytes loses the header.
const HeaderPointsTo = "Weir-Points-To"

// PointsTo returns the place of the message if m is a pointer, and "" otherwise. A
// pointer cannot be sent back: jobs leave it in place.
func (m *Message) PointsTo() string {
	if len(m.Payload) > 0 {
		return "" // another program's header
	}
	return m.Meta.Headers[HeaderPointsTo]
}
