// Package message has the message: an element of a stream together with its
// acknowledgement ([Settlement], laws D1 and D2) and its history ([Meta], law D6). It
// does not import other parts of weir, so that package delivery and operators can share
// it. Package delivery has the same names: use those, unless you cannot import it.
package message
