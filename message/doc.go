// Package message has the message: an element of a stream with its acknowledgement
// ([Settlement], laws D1 and D2) and its history ([Meta], law D6). Package delivery and
// operators share it. Package delivery has the same names: use those, unless you cannot
// import it.
package message
