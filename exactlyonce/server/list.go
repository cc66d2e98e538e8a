package server

type links[E any] struct{ prev, next *E }

// member is a pointer to an E that contains its links, which saves an allocation.
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

func (l *list[E, P]) moveBack(e P) {
	l.remove(e)
	l.pushBack(e)
}
