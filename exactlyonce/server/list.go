package server

// links are the neighbours of a member of a list.
type links[E any] struct{ prev, next *E }

// member is a pointer to an E that contains its links, so that an entry in the list costs
// no allocation.
type member[E any] interface {
	*E
	links() *links[E]
}

// list is doubly linked. A member is in one list at most.
type list[E any, P member[E]] struct{ first, last P }

func (l *list[E, P]) pushBack(e P) {
	*e.links() = links[E]{prev: l.last}
	if l.last != nil {
		l.last.links().next = e
	} else {
		l.first = e
	}
	l.last = e
}

// remove takes out e, which is in the list.
func (l *list[E, P]) remove(e P) {
	at := e.links()
	if at.prev != nil {
		P(at.prev).links().next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		P(at.next).links().prev = at.prev
	} else {
		l.last = at.prev
	}
	*at = links[E]{}
}

// moveBack makes e, which is in the list, the last one.
func (l *list[E, P]) moveBack(e P) {
	l.remove(e)
	l.pushBack(e)
}
